// Photos are identified one after the other; each has a card with the classes that it may show. Where
// that happens, on a server or in this browser, is the backend's.
import { Refused, askForKey, at, complain, counted, element, forgive, percent, sentence } from "./api.js";
import * as backend from "./backend.js";
import { startCamera } from "./camera.js";

const MOST_CARDS = 100;
let info = null; // the model
let last = Promise.resolve();

const refuse = (words) => complain(new Refused(words));

function take(files) {
  if (!info) return;
  forgive();
  for (const file of files) {
    const card = new Card(file);
    at("results").prepend(card.box);
    last = last.then(() => card.identify());
  }
  while (at("results").children.length > MOST_CARDS) at("results").lastChild.remove();
  showTools(true);
}

function showTools(isShown) {
  at("tools").hidden = !isShown;
  at("words").hidden = !(isShown && info.corrections);
}

// One photo: what it shows, and the class that a person gives it.
class Card {
  constructor(file) {
    this.file = file;
    this.picture = element("img", { alt: "" , hidden: true });
    this.verdict = element("p", { class: "verdict" }, "Looking …");
    this.note = element("p", { class: "note", hidden: true });
    this.guesses = element("div", { class: "guesses" });
    this.answer = element("div", { class: "answer" }, this.verdict, this.note, this.guesses);
    this.box = element("li", { class: "result waiting" },
      element("figure", {}, this.picture, element("figcaption", {}, file.name)), this.answer);
    this.box.card = this;
  }

  async identify() {
    try {
      if (this.file.size > info.max_bytes) throw new Refused(`The photo is larger than ${Math.floor(info.max_bytes / 1e6)} MB.`);
      this.found = await backend.identify(this.file, info);
      this.draw();
    } catch (error) {
      this.fail(error);
    }
  }

  fail(error) {
    this.box.classList.remove("waiting");
    this.verdict.textContent = "Not identified";
    this.say(error.message, "wrong");
    if (!(error instanceof Refused)) throw error;
  }

  say(words, kind, ...more) {
    this.note.className = `note ${kind || ""}`;
    this.note.replaceChildren(sentence(words), ...more);
    this.note.hidden = false;
  }

  draw() {
    const { label, confidence, doubtful, unknown, best } = this.found;
    this.box.className = doubtful ? "result doubtful" : "result";
    if (unknown) this.verdict.textContent = "None of these";
    else this.verdict.replaceChildren(element("bdi", {}, label), ` ${percent(confidence)}`);
    if (unknown) this.say(`Unknown: the photo is unlike all photos that the classifier was trained on. The most similar class is ${label}`);
    else if (doubtful) this.say(`Doubtful: the confidence is below ${percent(info.threshold)}`);
    this.guesses.replaceChildren(...best.map((guess) => this.guess(guess)));
    if (info.corrections) this.guesses.append(this.other());
    this.showPicture();
  }

  showPicture() {
    const { preview, heat_map: heat, label } = this.found ?? {};
    if (!preview) return;
    const isHeat = heat && at("heat").checked;
    this.picture.src = isHeat ? heat : preview;
    this.picture.alt = isHeat ? `Where the network found evidence for ${label}` : `The photo ${this.file.name}`;
    this.picture.hidden = false;
  }

  guess({ class: label, probability }) {
    const bar = element("i", { "aria-hidden": "true" });
    bar.style.width = `${100 * probability}%`;
    const parts = [bar, element("bdi", {}, label), element("span", {}, percent(probability))];
    if (!info.corrections) return element("p", { class: "guess", "data-label": label }, parts);
    const button = element("button", { type: "button", class: "guess", title: `It is ${label}: keep the photo for review`, "data-label": label }, parts);
    button.addEventListener("click", () => this.correct(label));
    return button;
  }

  other() {
    const input = element("input", { list: "classes", maxlength: 200, autocomplete: "off", placeholder: "Another class", "aria-label": "Another class" });
    const form = element("form", { class: "other" }, input, element("button", { type: "submit" }, "It is this"));
    form.addEventListener("submit", (event) => { event.preventDefault(); if (input.value.trim()) this.correct(input.value); });
    return form;
  }

  async correct(label) {
    try {
      const kept = await backend.correct(this.file, label);
      const undo = element("button", { type: "button", class: "link" }, "Undo");
      undo.addEventListener("click", () => this.undo(kept.id));
      this.mark(kept.label);
      this.say(`Kept for review as ${kept.label} (${counted(kept.waiting, "photo")} kept)`, "good", " ", undo);
    } catch (error) {
      this.say(error.message, "wrong");
    }
  }

  async undo(id) {
    try {
      await backend.takeBack(id);
      this.mark(null);
      this.say("The correction was undone");
    } catch (error) {
      this.say(error.message, "wrong");
    }
  }

  mark(label) {
    for (const one of this.guesses.querySelectorAll(".guess")) one.classList.toggle("chosen", one.dataset.label === label);
  }
}

async function start() {
  try {
    info = await backend.open((words) => { at("served").textContent = words; });
  } catch (error) {
    complain(error);
    return;
  }
  const classes = info.classes.length;
  document.title = `clew · ${info.model}`;
  at("served").textContent = `${info.model} · ${classes === 1 ? "1 class" : `${classes.toLocaleString("en")} classes`}`;
  at("heat").parentElement.hidden = !info.heat_maps;
  at("classes").replaceChildren(...info.classes.map((label) => element("option", { value: label })));
}

const isPhotos = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
document.addEventListener("dragover", (event) => { if (isPhotos(event)) { event.preventDefault(); at("drop").classList.add("over"); } });
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) at("drop").classList.remove("over"); });
document.addEventListener("drop", (event) => {
  if (!isPhotos(event)) return;
  event.preventDefault();
  at("drop").classList.remove("over");
  take(event.dataTransfer.files);
});
document.addEventListener("paste", (event) => { if (event.clipboardData.files.length) take(event.clipboardData.files); });
at("choose").addEventListener("click", () => at("files").click());
at("files").addEventListener("change", () => { take(at("files").files); at("files").value = ""; });
at("heat").addEventListener("change", () => { for (const box of at("results").children) box.card.showPicture(); });
at("clear").addEventListener("click", () => { at("results").replaceChildren(); showTools(false); });
startCamera((file) => take([file]), refuse);
askForKey(start);
start();
