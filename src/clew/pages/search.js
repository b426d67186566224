"use strict";
// The search for a class: those that start with what is typed, then those that contain it, then a new
// one. A page's own script defines searched (the classes in order) and correct.

const fold = (text) => text.normalize("NFC").trim().toLowerCase();
let chosen = 0;

function search() {
  const typed = at("search").value.trim(), wanted = fold(typed);
  if (!wanted || !state || !isAsking()) return hideFound();
  const labels = searched();
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

at("search").addEventListener("keydown", (event) => { if (isShortcut(event)) searchKey(event); });
at("search").addEventListener("input", search);
at("search").addEventListener("blur", hideFound);
at("search").addEventListener("focus", search);
