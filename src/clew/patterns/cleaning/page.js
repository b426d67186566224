"use strict";
// The findings of the chosen kind: the open one with its photos, the next ones below, and decisions.
// Which one is open is this page's own matter, so that two people can work on different ones.

let chosenKind = location.hash.slice(1) || null; // of findings: "#duplicate" starts with those
let open = null; // the number of the finding that is shown, null for the first

const list = () => state.findings[chosenKind] || [];
const finding = () => list().find((one) => one.number === open) || list()[0] || null;
const searched = () => state.classes;
const isAsking = () => state.kinds.some((one) => one.open > 0);
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

function chooseKind() {
  const of = (kind) => state.kinds.find((one) => one.kind === kind);
  if (!of(chosenKind)?.open) chosenKind = (state.kinds.find((one) => one.open) || state.kinds[0]).kind;
}

function drawProgress() {
  closeSearch();
  chooseKind();
  fillBar(state.total);
  const left = state.total - state.place;
  document.title = `${left} open · clew clean`;
  at("count").replaceChildren(element("b", {}, number(left)), " open");
  at("kinds").replaceChildren(...state.kinds.map(drawKind));
}

function drawKind({ kind, title, open: count }) {
  const made = element("button", { type: "button", class: "kind", "aria-pressed": String(kind === chosenKind) }, title, element("b", {}, number(count)));
  made.disabled = !count;
  made.addEventListener("click", () => { chosenKind = kind; open = null; goOn(); });
  return made;
}

function drawQuestion() {
  const shown = finding();
  const [first] = shown.photos;
  at("photos").replaceChildren(...shown.photos.map((photo, which) => drawPhoto(shown, photo, which)));
  at("strip").replaceChildren(...(list().length > 1 ? list().map((one) => drawNext(one, shown)) : []));
  at("question").replaceChildren(...title(shown, first));
  at("reason").textContent = `${shown.reason[0].toUpperCase()}${shown.reason.slice(1)}.`;
  at("decisions").replaceChildren(...decisions(shown).map(drawDecision));
  const isTwice = shown.photos.length === 2 && shown.photos[1].label === first.label; // whatever it is
  const others = isTwice ? [] : state.classes.filter((label) => label !== first.label && label !== shown.suggestion);
  at("others").replaceChildren(...others.slice(0, 40).map(drawChip));
  at("others-title").hidden = !others.length;
}

function title(shown, first) {
  if (chosenKind === "label" || chosenKind === "overlap") return ["Is this ", element("em", {}, shown.suggestion), ", not ", element("em", {}, first.label), "?"];
  if (shown.photos.length === 2) return [chosenKind === "leak" ? "The same photo in two splits?" : "Is this the same photo twice?"];
  return [chosenKind === "quality" ? "Is this photo good enough?" : "Does this photo belong here?"];
}

function drawPhoto(shown, photo, which) {
  const image = element("img", { alt: `The photo ${photo.name}`, src: `photos/${shown.number}/${which}` });
  const stage = element("div", { class: "stage" }, image);
  image.addEventListener("error", () => stage.replaceChildren(element("p", {}, "This photo cannot be shown: it was moved, changed or damaged.")));
  const tags = [photo.split, photo.label].filter(Boolean).map((word) => element("span", { class: "tag" }, word));
  return element("figure", {}, stage, element("figcaption", {}, ...tags, photo.name));
}

function drawNext(one, shown) {
  const words = one.suggestion ? `→ ${one.suggestion}` : one.photos[0].label;
  const made = element("button", { type: "button", class: "next", title: one.photos[0].name, "aria-pressed": String(one === shown) },
    element("img", { src: `thumbnails/${one.number}/0`, alt: "", loading: "lazy" }), element("span", {}, words));
  made.addEventListener("click", () => { open = one.number; goOn(); });
  return made;
}

// What can be decided, the suggested decision first: its words, its key, and what is sent.
function decisions(shown) {
  const [first, second] = shown.photos;
  const keep = { words: second ? "Keep both" : `Keep it${first.label ? ` in ${first.label}` : ""}`, key: "K", action: "keep" };
  if (second) {
    const remove = (photo, which, key) => ({ words: `Remove the ${which ? "right" : "left"} one`, key, action: "remove", other: which === 1 });
    return [remove(first, 0, "R"), remove(second, 1, "O"), ...moves(first), keep];
  }
  const remove = { words: "Remove it", key: "R", action: "remove" };
  if (!shown.suggestion) return [remove, ...moves(first), keep];
  return [{ words: `Relabel: ${shown.suggestion}`, key: "Enter", action: "relabel", label: shown.suggestion }, keep, remove, ...moves(first)];
}

const moves = (photo) => state.splits.filter((split) => split !== photo.split)
  .map((split) => ({ words: `Move to ${split}`, key: "", action: "move", label: split }));

function drawDecision({ words, key, ...sent }, place) {
  const made = element("button", { type: "button", class: place ? "" : "primary" }, element("span", {}, words), key ? element("kbd", { "aria-hidden": "true" }, key) : null);
  made.addEventListener("click", () => settle(sent));
  return made;
}

function settle({ action, ...more }) {
  const { number: chosen } = finding();
  const next = list()[list().findIndex((one) => one.number === chosen) + 1];
  open = action === "later" || !next ? null : next.number;
  decide(action, { finding: chosen, ...more });
}

const correct = (label) => settle({ action: "relabel", label });

function drawChip(label) {
  const chip = element("button", { type: "button", class: "chip", title: `Relabel: ${label}` }, label);
  chip.addEventListener("click", () => correct(label));
  return chip;
}

function endTitle(left) {
  return left ? `${plural(left, "finding")} left for next time` : state.place ? `All ${plural(state.total, "finding")} decided` : "Nothing to clean";
}

function drawResult() {
  const { relabeled, moved, removed } = state.counts;
  const changed = relabeled + moved + removed;
  const gone = removed ? ` Removed photos are in ${state.removed}; "Undo" brings them back.` : "";
  at("where").textContent = changed ? `${plural(changed, "photo")} in ${state.folder} changed.${gone}` : "No photo was changed.";
  at("next-title").hidden = at("command").parentElement.hidden = !changed;
}

function askingKey(key) {
  const shown = finding();
  const found = shown && decisions(shown).find((one) => one.key.toLowerCase() === key.toLowerCase());
  if (found) settle(found);
  else if (key === "Enter" && shown) settle(decisions(shown)[0]);
  else if (key === "s") settle({ action: "later" });
  else if (key === "u") decide("undo");
  else if (key === "q") leave();
  else if (key === "/" || key === "c") at("search").focus();
  else if (key === "ArrowRight" || key === "ArrowLeft") step(key === "ArrowRight" ? 1 : -1);
  else return false;
  return true;
}

function step(by) {
  const place = list().indexOf(finding()) + by;
  if (place >= 0 && place < list().length) { open = list()[place].number; goOn(); }
}

at("later").addEventListener("click", () => settle({ action: "later" }));
