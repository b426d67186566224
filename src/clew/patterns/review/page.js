"use strict";
// The open photo and the model's guesses; search.js finds another class.

const isAsking = () => state.question !== null;
const searched = () => byKey(Object.keys(state.question.keys));
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

at("photo").addEventListener("load", () => at("photo").parentElement.classList.remove("waiting"));
at("photo").addEventListener("error", () => {
  at("no-photo").textContent = "This photo cannot be shown: it was moved, changed or damaged. Skip it.";
  at("no-photo").hidden = false;
});
