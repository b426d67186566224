"use strict";
// The page shows the state of the server and sends back a person's answers; it decides nothing.

const at = (id) => document.getElementById(id);
const views = ["asking", "done", "lost"];
let state = null; // the last one from the server
let busy = false;
let leaving = false; // the end was requested before all photos were reviewed

async function send(path, body) {
  const options = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const reply = await fetch(path, options || {});
  if (reply.headers.get("Content-Type")?.includes("json")) return reply.json();
  if (!state || reply.status < 400 || reply.status === 404 || reply.status >= 500) throw new Error(await reply.text());
  return { ...state, message: "", error: `${await reply.text()}. Nothing was changed.` }; // the server refused it
}

async function answer(action, label) {
  if (busy || !state) return;
  if (action === "undo" && !state.can_undo) return toast("There is nothing to undo.", true);
  busy = true;
  try {
    take(await send("answer", { question: state.place, action, label: label || "" }));
  } catch {
    show("lost");
  } finally {
    busy = false;
  }
}

function take(reply) {
  state = reply;
  if (reply.error) toast(reply.error, true);
  else if (reply.message) toast(reply.message);
  document.activeElement?.blur(); // otherwise Enter would press the button that was clicked last
  closeSearch();
  drawProgress();
  writeCommand("again", state.again);
  if (state.question && !leaving) drawQuestion();
  else drawEnd();
}

function show(view) {
  for (const id of views) at(id).hidden = id !== view;
  at("leave").hidden = view !== "asking";
}

// Elements are built, never parsed: names of files and classes are always text.
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

const keycap = (key) => (key.length === 1 ? element("kbd", { "aria-hidden": "true" }, key) : null);

function drawProgress() {
  const bar = at("progress");
  bar.setAttribute("aria-valuemax", state.total);
  bar.setAttribute("aria-valuenow", state.place);
  bar.firstElementChild.style.width = `${(100 * state.place) / Math.max(1, state.total)}%`;
  const shown = Math.min(state.place + 1, state.total);
  document.title = `${shown} of ${state.total} · clew review`;
  at("count").replaceChildren(element("b", {}, shown.toLocaleString("en")), ` of ${state.total.toLocaleString("en")}`);
}

function drawQuestion() {
  const { guesses, keys, name } = state.question;
  const best = guesses[0].label;
  show("asking");
  drawPhoto(name);
  at("question").replaceChildren("Is this ", element("em", {}, best), "?");
  at("guesses").replaceChildren(...guesses.map(drawGuess));
  const guessed = new Set(guesses.map((guess) => guess.label));
  const others = Object.keys(keys).filter((label) => !guessed.has(label));
  at("others").replaceChildren(...byKey(others).slice(0, 60).map((label) => drawChip(label, keys[label])));
  at("approve").setAttribute("aria-label", `Approve: it is ${best}`);
  at("undo").disabled = !state.can_undo;
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
  button.addEventListener("click", () => (place ? answer("correct", guess.label) : answer("approve")));
  return element("li", {}, button);
}

function drawChip(label, key) {
  const cap = keycap(key);
  const chip = element("button", { type: "button", class: cap ? "chip keyed" : "chip" }, cap, label);
  chip.addEventListener("click", () => answer("correct", label));
  return chip;
}

// A line that does not fit breaks between words, not inside "--model".
function writeCommand(id, command) {
  const words = command.split(" ").map((word) => element("span", {}, word));
  at(id).replaceChildren(...words.flatMap((word) => [word, " "]));
}

const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

function drawEnd() {
  const { counts, total, place, new_classes: fresh } = state;
  const left = total - place, taught = counts.approved + counts.corrected;
  show("done");
  at("done-title").textContent =
    !total ? "Nothing to review" : left ? `${counted(left, "photo")} left for next time` : total === 1 ? "Photo reviewed" : `All ${counted(total, "photo")} reviewed`;
  at("tiles").replaceChildren(...Object.entries(counts).map(([name, count]) =>
    element("div", { class: name }, element("dt", {}, name), element("dd", {}, count.toLocaleString("en")))));
  at("new-classes").hidden = !fresh;
  at("new-classes").textContent = fresh;
  at("where").textContent = taught ? `${counted(taught, "photo")} ${taught === 1 ? "is" : "are"} in ${state.folder} now.` : "No photo was added to a class.";
  for (const id of ["next-title", "next-words"]) at(id).hidden = !taught;
  at("command").parentElement.hidden = !taught;
  writeCommand("command", state.command);
  at("back").hidden = !left;
  at("undo-last").hidden = !state.can_undo;
  at("done-title").focus();
}

async function finish() {
  if (busy) return;
  busy = true;
  try {
    await send("done", {});
  } catch {
    // it has already stopped
  }
  at("end-actions").hidden = true;
  at("closed").hidden = false;
  state = null;
}

function leave() {
  leaving = true;
  at("toast").classList.remove("shown");
  drawEnd();
}

function goOn() {
  leaving = false;
  take({ ...state, message: "", error: "" });
}

let fading;
function toast(text, wrong) {
  clearTimeout(fading);
  at("toast").textContent = text;
  at("toast").className = wrong ? "shown wrong" : "shown";
  fading = setTimeout(() => at("toast").classList.remove("shown"), wrong ? 8000 : 2500);
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
  row.addEventListener("pointerdown", (event) => { event.preventDefault(); answer("correct", label); });
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
  else if (event.key === "Enter" && open) answer("correct", at("found").children[chosen].dataset.label);
  else return;
  event.preventDefault();
}

function askingKey(key) {
  const { keys } = state.question;
  const label = Object.keys(keys).find((one) => keys[one] === key);
  if (key === "Enter" || key === "a") answer("approve");
  else if (key === "s") answer("skip");
  else if (key === "u") answer("undo");
  else if (key === "q") leave();
  else if (key === "/" || key === "c") at("search").focus();
  else if (label !== undefined) answer("correct", label);
  else return false;
  return true;
}

function endKey(key) {
  if (key === "Enter") finish();
  else if (key === "u") { leaving = false; answer("undo"); }
  else if (key === "Escape" && leaving) goOn();
  else return false;
  return true;
}

document.addEventListener("keydown", (event) => {
  if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.target === at("search")) return searchKey(event);
  if (event.key === "Enter" && event.target.closest("button")) return; // the button handles it
  if (!state || !at("lost").hidden) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const used = at("asking").hidden ? endKey(key) : askingKey(key);
  if (used) event.preventDefault();
});

at("search").addEventListener("input", search);
at("search").addEventListener("blur", hideFound);
at("search").addEventListener("focus", search);
at("photo").addEventListener("load", () => at("photo").parentElement.classList.remove("waiting"));
at("photo").addEventListener("error", () => {
  at("no-photo").textContent = "This photo cannot be shown: it was moved, changed or damaged. Skip it.";
  at("no-photo").hidden = false;
});
at("approve").addEventListener("click", () => answer("approve"));
at("skip").addEventListener("click", () => answer("skip"));
at("undo").addEventListener("click", () => answer("undo"));
at("undo-last").addEventListener("click", () => endKey("u"));
at("leave").addEventListener("click", leave);
at("back").addEventListener("click", goOn);
at("close").addEventListener("click", finish);
at("copy").addEventListener("click", () => {
  const copied = navigator.clipboard.writeText(at("command").textContent.trim());
  copied.then(() => toast("Copied."), () => toast("The browser blocked copying: select the line and copy it yourself.", true));
});

send("state").then(take, () => show("lost"));
