// Checking: an answer and its source are pasted; what the source does not support is marked, with the passage that comes nearest.
import { at, complain, counted, element, forgive, gauge, percent, read, verdictWords } from "./parts.js";

let last = 0; // the number of the latest check: an earlier one that answers late is not shown

async function check(source, answer, question) {
  const number = ++last;
  forgive();
  at("checked").replaceChildren(element("p", { class: "empty", "aria-busy": "true" }, "Reading the source …"));
  try {
    const found = await read("v1/check", { source, answer, ...(question ? { question } : {}) });
    if (number !== last) return;
    at("checked").replaceChildren(draw(source, answer, question, found));
    at("check-spoken").textContent = `${verdictWords(found).title}. ${words(found)}`;
  } catch (error) {
    if (number !== last) return;
    at("checked").replaceChildren();
    complain(error);
  }
}

const words = (found) => (found.state !== "checked" ? "" : found.spans.length ? `${counted(found.spans.length, "unsupported span")}.` : "Nothing is marked.");

function draw(source, answer, question, found) {
  const passages = drawPassages(source, found.spans);
  const told = element("p", { class: "token-words quiet", "aria-live": "polite" });
  const marks = found.spans.map((span, place) => {
    const mark = element("mark", { class: "unsupported", tabindex: "0" }, span.text);
    mark.style.setProperty("--shade", Math.max(0.35, span.risk).toFixed(3));
    const show = () => {
      for (const other of marks) other.classList.toggle("now", other === mark);
      told.textContent = describe(span);
      passages.show(place);
    };
    for (const event of ["focus", "pointerenter", "click"]) mark.addEventListener(event, show);
    return mark;
  });
  const shown = element("p", { class: "answer-text" }, drawAnswer(answer, found, marks));
  const text = element("div", { class: "text" },
    question ? element("h2", {}, question) : null,
    shown, found.sentences.length ? offerSentences(shown) : null, told, element("p", { class: "quiet" }, words(found)),
    element("h2", {}, "Source"), passages.text);
  return element("article", { class: "card" }, text, gauge(found, false));
}

// The marked answer, with the risk of each sentence behind it.
function drawAnswer(answer, found, marks) {
  const risks = new Map(found.sentences.map((one) => [one.end, one.risk]));
  const ends = found.sentences.map((one) => ({ start: one.end, end: one.end }));
  let place = 0;
  return cut(answer, [...found.spans, ...ends]).flatMap((part) => {
    place += Array.from(part.text).length;
    const drawn = part.of.length ? marks[part.of[0]] : part.text;
    if (!risks.has(place)) return [drawn];
    return [drawn, element("small", { class: "quiet sentence-risk", hidden: "" }, ` ${percent(risks.get(place))}`)];
  });
}

function offerSentences(shown) {
  const box = element("input", { type: "checkbox", id: "by-sentence" });
  box.addEventListener("change", () => { for (const one of shown.querySelectorAll(".sentence-risk")) one.hidden = !box.checked; });
  return element("label", { class: "quiet" }, box, " By sentence");
}

function describe(span) {
  const near = span.nearest ? ` · nearest in the source: “${span.nearest.text.trim()}”` : "";
  return `“${span.text}” · risk ${percent(span.risk)}${near}`;
}

// The source, in which the passage that comes nearest to a span can be shown.
function drawPassages(source, spans) {
  const places = spans.map((span) => span.nearest ?? { start: 0, end: 0 });
  const parts = cut(source, places).map((part) => ({ ...part, drawn: element("span", part.of.length ? { class: "passage" } : {}, part.text) }));
  const text = element("p", { class: "source-text", tabindex: "0", "aria-label": "Source" }, parts.map((part) => part.drawn));
  const show = (place) => {
    const own = parts.filter((part) => part.of.includes(place));
    for (const part of parts) part.drawn.classList.toggle("now", own.includes(part));
    const [first] = own;
    if (first) text.scrollTop = first.drawn.offsetTop - text.clientHeight / 3;
  };
  return { text, show };
}

// A text in parts, each with the places that cover it. Places count characters as Python does, not UTF-16 units.
function cut(text, places) {
  const characters = Array.from(text);
  const ends = [...new Set([0, characters.length, ...places.flatMap((one) => [one.start, one.end])])].sort((a, b) => a - b);
  return ends.slice(1).map((end, place) => ({
    text: characters.slice(ends[place], end).join(""),
    of: places.flatMap((one, number) => (one.start <= ends[place] && end <= one.end ? [number] : [])),
  }));
}

export const showCheck = () => at("check-source").focus();

export function startChecking() {
  const [source, answer, question] = ["source", "answer", "question"].map((name) => at(`check-${name}`));
  const submit = () => { if (source.value.trim() && answer.value.trim()) check(source.value, answer.value, question.value.trim()); };
  at("check-form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  for (const field of [source, answer, question]) {
    field.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); submit(); } });
    field.addEventListener("paste", () => setTimeout(submit)); // once the text is there
  }
}
