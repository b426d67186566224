"use strict";
// What every review page does: it shows the state of the server and sends back a person's decisions;
// it decides nothing. A page's own script defines isAsking, drawProgress, drawQuestion, endTitle,
// drawResult and askingKey.

const at = (id) => document.getElementById(id);
let state = null; // the last one from the server
let busy = false;
let leaving = false; // the end was requested before everything was reviewed

async function send(path, body) {
  const options = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const reply = await fetch(path, options || {});
  if (reply.headers.get("Content-Type")?.includes("json")) return reply.json();
  if (!state || reply.status < 400 || reply.status === 404 || reply.status >= 500) throw new Error(await reply.text());
  return { ...state, message: "", error: `${await reply.text()}. Nothing was changed.` }; // the server refused it
}

async function decide(action, more) {
  if (busy || !state) return;
  if (action === "undo" && !state.can_undo) return toast("There is nothing to undo.", true);
  busy = true;
  try {
    take(await send("answer", { question: state.place, action, ...more }));
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
  drawProgress();
  writeCommand("again", state.again);
  if (!isAsking() || leaving) return drawEnd();
  show("asking");
  drawQuestion();
  at("undo").disabled = !state.can_undo;
}

function show(view) {
  for (const id of ["asking", "done", "lost"]) at(id).hidden = id !== view;
  at("leave").hidden = view !== "asking";
}

// Elements are built, never parsed: names, questions and answers are always text.
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

const number = (count) => count.toLocaleString("en");

function fillBar(goal) {
  const bar = at("progress");
  bar.setAttribute("aria-valuemax", goal);
  bar.setAttribute("aria-valuenow", state.place);
  bar.firstElementChild.style.width = `${(100 * state.place) / Math.max(1, goal)}%`;
}

// A line that does not fit breaks between words, not inside "--model".
function writeCommand(id, command) {
  const words = command.split(" ").map((word) => element("span", {}, word));
  at(id).replaceChildren(...words.flatMap((word) => [word, " "]));
}

function drawEnd() {
  const left = state.total - state.place;
  show("done");
  at("done-title").textContent = endTitle(left);
  at("tiles").replaceChildren(...Object.entries(state.counts).map(([name, count]) =>
    element("div", { class: name }, element("dt", {}, name), element("dd", {}, number(count)))));
  drawResult();
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

function endKey(key) {
  if (key === "Enter") finish();
  else if (key === "u") { leaving = false; decide("undo"); }
  else if (key === "Escape" && leaving) goOn();
  else return false;
  return true;
}

const isShortcut = (event) => !(event.isComposing || event.ctrlKey || event.metaKey || event.altKey || event.repeat);

document.addEventListener("keydown", (event) => {
  if (!isShortcut(event) || event.target instanceof HTMLInputElement) return;
  if (event.key === "Enter" && event.target.closest("button")) return; // the button handles it
  if (!state || !at("lost").hidden) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const used = at("asking").hidden ? endKey(key) : askingKey(key);
  if (used) event.preventDefault();
});

for (const button of document.querySelectorAll("[data-action]")) button.addEventListener("click", () => decide(button.dataset.action));
at("undo-last").addEventListener("click", () => endKey("u"));
at("leave").addEventListener("click", leave);
at("back").addEventListener("click", goOn);
at("close").addEventListener("click", finish);
at("copy").addEventListener("click", () => {
  const copied = navigator.clipboard.writeText(at("command").textContent.trim());
  copied.then(() => toast("Copied."), () => toast("The browser blocked copying: select the line and copy it yourself.", true));
});

// The page's own script comes after this one.
document.addEventListener("DOMContentLoaded", () => send("state").then(take, () => show("lost")));
