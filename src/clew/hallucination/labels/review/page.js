"use strict";
// The page shows the state of the server and sends back a person's decisions; it decides nothing.

const at = (id) => document.getElementById(id);
const keys = { c: "correct", h: "hallucinated", r: "refused", x: "excluded", Enter: "keep", s: "skip", u: "undo", ArrowLeft: "undo", ArrowRight: "skip" };
let state = null; // the last one from the server
let busy = false;
let leaving = false; // the end was requested before all answers were reviewed

async function send(path, body) {
  const options = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const reply = await fetch(path, options || {});
  if (reply.headers.get("Content-Type")?.includes("json")) return reply.json();
  throw new Error(await reply.text());
}

async function decide(action) {
  if (busy || !state) return;
  if (action === "undo" && !state.can_undo) return toast("There is nothing to undo.", true);
  busy = true;
  try {
    take(await send("answer", { question: state.place, action }));
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
  at("again").textContent = state.again;
  if (state.answer && !leaving) drawAnswer();
  else drawEnd();
}

function show(view) {
  for (const id of ["asking", "done", "lost"]) at(id).hidden = id !== view;
  at("leave").hidden = view !== "asking";
}

// Elements are built, never parsed: questions and answers are always text.
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const number = (count) => count.toLocaleString("en");

function drawProgress() {
  // The doubtful ones first: their end is the first goal.
  const goal = state.place < state.doubtful ? state.doubtful : state.total;
  const shown = Math.min(state.place + 1, goal);
  const bar = at("progress");
  bar.setAttribute("aria-valuemax", goal);
  bar.setAttribute("aria-valuenow", state.place);
  bar.firstElementChild.style.width = `${(100 * state.place) / Math.max(1, goal)}%`;
  at("count").textContent = `${number(shown)} of ${number(goal)}${goal === state.doubtful && goal < state.total ? " doubtful" : ""}`;
  document.title = `${shown} of ${goal} · clew labels`;
}

function drawAnswer() {
  const { id, category, question, answer, accepted, label, reason, method, doubt } = state.answer;
  show("asking");
  at("about").textContent = [category, id].filter(Boolean).join(" · ");
  at("question").textContent = question || "(no question)";
  at("answer").replaceChildren(...marked(answer, accepted));
  at("answer").scrollTop = 0;
  at("accepted").replaceChildren(...accepted.map((text) => element("li", {}, text)));
  at("label").textContent = label;
  at("label").className = label;
  at("why").textContent = `by ${method}: ${doubt || reason || "no reason is known"}`;
  at("keep").firstElementChild.textContent = `Keep: ${label}`;
  at("undo").disabled = !state.can_undo;
}

// The answer, with the accepted answers in it marked.
function marked(text, accepted) {
  const low = text.toLowerCase(), parts = [];
  const wanted = accepted.map((one) => one.toLowerCase()).filter((one) => one.trim()).sort((a, b) => b.length - a.length);
  if (low.length !== text.length) return [text]; // letters that change their length
  let from = 0;
  for (let place = 0; place < text.length;) {
    const found = wanted.find((one) => low.startsWith(one, place));
    if (!found) { place += 1; continue; }
    parts.push(text.slice(from, place), element("mark", {}, text.slice(place, place + found.length)));
    place += found.length;
    from = place;
  }
  return [...parts, text.slice(from)].filter((part) => part !== "");
}

function drawEnd() {
  const left = state.total - state.place;
  show("done");
  at("done-title").textContent = !state.total ? "Nothing to review" : left ? `${number(left)} left for next time` : "All answers reviewed";
  at("tiles").replaceChildren(...Object.entries(state.counts).map(([name, count]) =>
    element("div", { class: name }, element("dt", {}, name), element("dd", {}, number(count)))));
  at("file").textContent = state.file;
  at("command").textContent = state.command;
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

function askingKey(key) {
  if (key === "q") leave();
  else if (keys[key]) decide(keys[key]);
  else return false;
  return true;
}

function endKey(key) {
  if (key === "Enter") finish();
  else if (key === "u") { leaving = false; decide("undo"); }
  else if (key === "Escape" && leaving) goOn();
  else return false;
  return true;
}

document.addEventListener("keydown", (event) => {
  if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
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
  const copied = navigator.clipboard.writeText(at("command").textContent);
  copied.then(() => toast("Copied."), () => toast("The browser blocked copying: select the line and copy it yourself.", true));
});

send("state").then(take, () => show("lost"));
