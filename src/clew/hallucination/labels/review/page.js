"use strict";
// The open answer, with its label and the reason for it.

const keys = { c: "correct", h: "hallucinated", r: "refused", x: "excluded", Enter: "keep", s: "skip", u: "undo", ArrowLeft: "undo", ArrowRight: "skip" };
const isAsking = () => state.answer !== null;

function drawProgress() {
  // The doubtful ones first: their end is the first goal.
  const goal = state.place < state.doubtful ? state.doubtful : state.total;
  const shown = Math.min(state.place + 1, goal);
  fillBar(goal);
  at("count").textContent = `${number(shown)} of ${number(goal)}${goal === state.doubtful && goal < state.total ? " doubtful" : ""}`;
  document.title = `${shown} of ${goal} · clew labels`;
}

function drawQuestion() {
  const { id, category, question, answer, accepted, label, reason, method, doubt } = state.answer;
  at("about").textContent = [category, id].filter(Boolean).join(" · ");
  at("question").textContent = question || "(no question)";
  at("answer").replaceChildren(...marked(answer, accepted));
  at("answer").scrollTop = 0;
  at("accepted").replaceChildren(...accepted.map((text) => element("li", {}, text)));
  at("label").textContent = label;
  at("label").className = label;
  at("why").textContent = `by ${method}: ${doubt || reason || "no reason is known"}`;
  at("keep").firstElementChild.textContent = `Keep: ${label}`;
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

const endTitle = (left) => !state.total ? "Nothing to review" : left ? `${number(left)} left for next time` : "All answers reviewed";

function drawResult() {
  at("file").textContent = state.file;
}

function askingKey(key) {
  if (key === "q") leave();
  else if (keys[key]) decide(keys[key]);
  else return false;
  return true;
}
