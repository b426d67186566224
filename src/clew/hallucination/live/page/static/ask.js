// Asking: the answer arrives token by token; earlier questions stay below.
import { at, complain, element, forgive, gauge, percent, read, Refused, send, shadeLegend, svg, TokenLine, verdictWords } from "./parts.js";

export const asked = []; // of this page only
let running = null;
let upstream = null; // the model to ask, if another server generates the answers
let feedback = null; // whether the server takes labels, and texts with them

// The events of a streamed reply, as they come.
async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    left += value;
    const parts = left.split(/\r?\n\r?\n/);
    left = parts.pop();
    for (const part of parts) {
      const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

function takeEvent(one, event) {
  if (event.error) throw new Refused(event.error.message);
  one.id = event.id;
  one.text = (one.text || "") + (event.choices?.[0]?.delta?.content || "");
  const clew = event.choices?.[0]?.clew;
  if (!clew) return;
  if (clew.state !== undefined) {
    // The end of the answer may have been cut after its tokens had come. One that is not familiar gets no verdict on its
    // tokens either.
    const isFar = clew.state === "out_of_distribution";
    if (isFar || clew.tokens.length !== one.line.tokens.length) one.line.clear();
    if (!one.line.tokens.length) clew.tokens.forEach((token) => one.line.add(isFar ? { ...token, risk: null } : token));
    one.clew = clew;
  } else clew.tokens.forEach((token) => one.line.add(token));
}

async function ask(question, context) {
  const one = { question, context, line: new TokenLine(), clew: null, number: asked.length, isPending: true };
  asked.push(one);
  at("answers-list").prepend((one.card = drawCard(one)));
  const isMarked = upstream !== null && context; // the other server knows messages only
  const content = isMarked ? `<context>\n${context}\n</context>\n\n${question}` : question;
  const messages = [{ role: "user", content }];
  running = new AbortController();
  at("stop").hidden = false;
  try {
    const body = { messages, stream: true, ...(context && !isMarked ? { context } : {}), ...(upstream ? { model: upstream } : {}) };
    const reply = await send("v1/chat/completions", body, running.signal);
    for await (const event of events(reply)) takeEvent(one, event);
  } catch (error) {
    const isStopped = error.name === "AbortError";
    const lost = error instanceof TypeError ? new Refused("The connection was lost before the end of the answer.") : error;
    one.clew = { risk: null, reason: isStopped ? "The answer was stopped before its end." : lost.message };
    if (!isStopped) complain(lost);
  } finally {
    running = null;
    at("stop").hidden = true;
    one.isPending = false;
    redraw(one);
  }
}

function redraw(one) {
  const card = drawCard(one);
  one.card.replaceWith(card);
  one.card = card;
  const words = verdictWords(one.clew);
  at("spoken").textContent = one.clew?.risk === null || one.clew?.risk === undefined ? `${words.title}. ${words.detail}` : `Answer complete. ${words.title}, risk ${percent(one.clew.risk)}.`;
}

function drawCard(one) {
  const text = element("div", { class: "text" },
    element("h2", {}, one.question),
    one.context ? element("details", { class: "context" }, element("summary", {}, "Context"), element("p", {}, one.context)) : null,
    one.line.line, one.line.words,
    one.isPending ? null : element("div", { class: "foot" },
      one.line.tokens.length ? shadeLegend(one.line.hasRisk) : element("p", { class: "quiet" }, one.text || (one.clew?.withheld ? "The answer was withheld." : "The answer is empty.")),
      one.line.tokens.length && one.clew?.state ? element("a", { href: `#asked/${one.number}`, class: "open" }, "Open the trace") : null),
    one.isPending || !feedback || one.clew?.withheld || !["checked", "out_of_distribution"].includes(one.clew?.state) ? null : drawFeedback(one));
  return element("article", { class: `card asked${one.isPending ? " pending" : ""}`, "aria-busy": String(one.isPending) }, text, gauge(one.clew, one.isPending));
}

const THUMB = "M2 10h3v9H2zM7 10l3.5-8c1.8 0 2.6 1.2 2.3 2.8L12.2 8H18c1.3 0 2.1 1 1.8 2.3l-1.5 6.9c-.2 1-1 1.8-2.1 1.8H7z";
const LABELS = { correct: "Correct", hallucinated: "Hallucinated" };

// Two buttons, of which the one that was said is pressed; a field for what is correct; and what the server answered.
function drawFeedback(one) {
  const words = element("p", { class: "quiet", role: "status" });
  const buttons = Object.entries(LABELS).map(([label, title]) => {
    const thumb = svg("svg", { viewBox: "0 0 22 21", "aria-hidden": "true" }, svg("path", { d: THUMB }));
    const button = element("button", { type: "button", class: `thumb ${label}`, "aria-pressed": "false" }, thumb, title);
    button.addEventListener("click", () => say(label));
    return button;
  });
  const text = element("textarea", { rows: "2", maxlength: "20000", required: true });
  const form = element("form", { class: "correction", hidden: true },
    element("label", {}, "What would be correct? ", text), element("button", { type: "submit" }, "Save the correction"));
  form.addEventListener("submit", (event) => { event.preventDefault(); say("hallucinated", text.value); });
  async function say(label, corrected) {
    words.textContent = "";
    words.classList.remove("refused");
    try {
      await read("v1/feedback", { id: one.id, label, ...(corrected ? { corrected_answer: corrected } : {}) });
    } catch (error) {
      words.classList.add("refused");
      words.textContent = `Not saved. ${error.message}`;
      return;
    }
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.classList.contains(label))));
    form.hidden = label === "correct" || !feedback.texts;
    if (form.hidden) text.value = "";
    words.textContent = `Saved as ${label}${corrected ? ", with the correct answer" : ""}.`;
  }
  return element("div", { class: "feedback", role: "group", "aria-label": "Feedback: was this answer correct?" }, ...buttons, words, form);
}

export function takeFeedback(about) { feedback = about; }

// Another server generates the answers: its first model is asked.
export async function takeUpstream() {
  upstream = "";
  const models = await read("v1/models").catch(() => ({}));
  upstream = models.data?.[0]?.id || "";
}

export function startAsking() {
  const question = at("question");
  const submit = () => {
    const text = question.value.trim();
    if (!text || running) return;
    forgive();
    question.value = "";
    ask(text, at("context").value.trim());
  };
  at("ask-form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  question.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  at("stop").addEventListener("click", () => running?.abort());
}
