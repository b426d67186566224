"use strict";
// The open photo, the model's guesses, and a search for another class.

const isAsking = () => state.question !== null;
const keycap = (key) => (key.length === 1 ? element("kbd", { "aria-hidden": "true" }, key) : null);

function drawProgress() {
  closeSearch();
  fillBar(state.total);
  const shown = Math.min(state.place + 1, state.total);
  document.title = `${shown} of ${state.total} · clew review`;
  at("count").replaceChildren(element("b", {}, number(shown)), ` of ${number(state.total)}`);
}

function drawQuestion() {
  const { guesses, keys, name } = state.question;
  const best = guesses[0].label;
  drawPhoto(name);
  at("question").replaceChildren("Is this ", element("em", {}, best), "?");
  at("guesses").replaceChildren(...guesses.map(drawGuess));
  const guessed = new Set(guesses.map((guess) => guess.label));
  const others = Object.keys(keys).filter((label) => !guessed.has(label));
  at("others").replaceChildren(...byKey(others).slice(0, 60).map((label) => drawChip(label, keys[label])));
  at("approve").setAttribute("aria-label", `Approve: it is ${best}`);
}

// Objects put names like "10" first: the keys have the order.
const byKey = (labels) => labels.sort((a, b) => Number(state.question.keys[a]) - Number(state.question.keys[b]));

function drawPhoto(name) {
  const photo = at("photo");
  at("no-photo").hidden = true;
  photo.parentElement.classList.add("waiting");
  photo.src = `photos/${state.place}`;
  photo.alt = `The photo ${name}`;
  at("name").textContent = name;
  if (state.following !== null) new Image().src = `photos/${state.following}`;
}

function drawGuess(guess, place) {
  const bar = element("i", { "aria-hidden": "true" });
  requestAnimationFrame(() => { bar.style.width = `${100 * guess.probability}%`; });
  const button = element(
    "button", { type: "button", class: "guess", "aria-label": `${guess.label}, ${guess.text}` },
    bar, keycap(guess.key), element("span", { class: "label" }, guess.label), element("span", { class: "sure" }, guess.text),
  );
  button.addEventListener("click", () => (place ? correct(guess.label) : decide("approve")));
  return element("li", {}, button);
}

const correct = (label) => decide("correct", { label });

function drawChip(label, key) {
  const cap = keycap(key);
  const chip = element("button", { type: "button", class: cap ? "chip keyed" : "chip" }, cap, label);
  chip.addEventListener("click", () => correct(label));
  return chip;
}

const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

function endTitle(left) {
  const { total } = state;
  return !total ? "Nothing to review" : left ? `${counted(left, "photo")} left for next time` : total === 1 ? "Photo reviewed" : `All ${counted(total, "photo")} reviewed`;
}

function drawResult() {
  const { counts, new_classes: fresh } = state;
  const taught = counts.approved + counts.corrected;
  at("new-classes").hidden = !fresh;
  at("new-classes").textContent = fresh;
  at("where").textContent = taught ? `${counted(taught, "photo")} ${taught === 1 ? "is" : "are"} in ${state.folder} now.` : "No photo was added to a class.";
  for (const id of ["next-title", "next-words"]) at(id).hidden = !taught;
  at("command").parentElement.hidden = !taught;
}

// Searching: classes that start with what is typed, then those that contain it, then a new one.
const fold = (text) => text.normalize("NFC").trim().toLowerCase();
let chosen = 0;

function search() {
  const typed = at("search").value.trim(), wanted = fold(typed);
  if (!wanted || !state?.question) return hideFound();
  const labels = byKey(Object.keys(state.question.keys));
  const begin = labels.filter((label) => fold(label).startsWith(wanted));
  const hold = labels.filter((label) => fold(label).includes(wanted) && !begin.includes(label));
  begin.sort((a, b) => (fold(b) === wanted) - (fold(a) === wanted));
  const rows = [...begin, ...hold].slice(0, 8).map((label) => found(label, label));
  if (!labels.some((label) => fold(label) === wanted)) rows.push(found(typed, `Create the class “${typed}”`, "new"));
  rows.forEach((row, place) => { row.id = `found-${place}`; });
  at("found").replaceChildren(...rows);
  at("found").hidden = false;
  at("search").setAttribute("aria-expanded", "true");
  mark(0);
}

function found(label, words, kind) {
  const row = element("li", { role: "option", class: kind || "", "data-label": label }, words);
  row.addEventListener("pointerdown", (event) => { event.preventDefault(); correct(label); });
  return row;
}

function mark(place) {
  const rows = [...at("found").children];
  chosen = (place + rows.length) % rows.length;
  rows.forEach((row, number) => row.setAttribute("aria-selected", String(number === chosen)));
  rows[chosen].scrollIntoView({ block: "nearest" });
  at("search").setAttribute("aria-activedescendant", rows[chosen].id);
}

function hideFound() {
  at("search").setAttribute("aria-expanded", "false");
  at("search").removeAttribute("aria-activedescendant");
  at("found").hidden = true;
}

function closeSearch() {
  at("search").value = "";
  at("search").blur();
  hideFound();
}

function searchKey(event) {
  const open = !at("found").hidden;
  if (event.key === "Escape") closeSearch();
  else if (event.key === "ArrowDown" && open) mark(chosen + 1);
  else if (event.key === "ArrowUp" && open) mark(chosen - 1);
  else if (event.key === "Enter" && open) correct(at("found").children[chosen].dataset.label);
  else return;
  event.preventDefault();
}

function askingKey(key) {
  const { keys } = state.question;
  const label = Object.keys(keys).find((one) => keys[one] === key);
  if (key === "Enter" || key === "a") decide("approve");
  else if (key === "s") decide("skip");
  else if (key === "u") decide("undo");
  else if (key === "q") leave();
  else if (key === "/" || key === "c") at("search").focus();
  else if (label !== undefined) correct(label);
  else return false;
  return true;
}

at("search").addEventListener("keydown", (event) => { if (isShortcut(event)) searchKey(event); });
at("search").addEventListener("input", search);
at("search").addEventListener("blur", hideFound);
at("search").addEventListener("focus", search);
at("photo").addEventListener("load", () => at("photo").parentElement.classList.remove("waiting"));
at("photo").addEventListener("error", () => {
  at("no-photo").textContent = "This photo cannot be shown: it was moved, changed or damaged. Skip it.";
  at("no-photo").hidden = false;
});
