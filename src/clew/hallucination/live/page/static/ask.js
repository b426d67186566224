// Asking: the answer arrives token by token; earlier questions stay below.
import { at, complain, element, forgive, gauge, percent, Refused, send, shadeLegend, TokenLine, verdictWords } from "./parts.js";

export const asked = []; // of this page only: nothing is kept on the server
let running = null;

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
  const messages = [{ role: "user", content: question }];
  running = new AbortController();
  at("stop").hidden = false;
  try {
    const body = { messages, stream: true, ...(context ? { context } : {}) };
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
      one.line.tokens.length ? shadeLegend(one.line.hasRisk) : element("p", { class: "quiet" }, "The answer is empty."),
      one.line.tokens.length && one.clew?.state ? element("a", { href: `#asked/${one.number}`, class: "open" }, "Open the trace") : null));
  return element("article", { class: `card asked${one.isPending ? " pending" : ""}`, "aria-busy": String(one.isPending) }, text, gauge(one.clew, one.isPending));
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
