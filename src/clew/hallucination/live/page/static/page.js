// One page, several views: the part after "#" says which one is shown.
import { asked, startAsking, takeFeedback, takeUpstream } from "./ask.js";
import { showAnswers, showComparisons, startBrowsing } from "./browse.js";
import { showCheck, startChecking } from "./check.js";
import { askForKey, at, complain, forgive, isLoading, read } from "./parts.js";
import { showTrace } from "./trace.js";

const views = ["ask", "check", "trace", "answers", "comparisons"];
let isFirst = true;
let isBrowsing = false;
let hasModel = true; // else answers are only checked

function show(view, tab) {
  for (const id of views) at(id).hidden = id !== view;
  for (const link of document.querySelectorAll("header nav a")) {
    if (link.dataset.view === tab) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!isFirst && view !== "ask") at(view).querySelector("h1")?.focus({ preventScroll: true });
  if (!isFirst && view === "ask") at("question").focus();
  if (!isFirst) window.scrollTo(0, 0);
  isFirst = false;
}

async function openTrace(load, back, tab) {
  const here = location.hash;
  at("main").setAttribute("aria-busy", "true");
  try {
    const trace = await load();
    if (location.hash !== here) return; // another view has been opened meanwhile
    showTrace(trace, back);
    show("trace", tab);
  } catch (error) {
    if (location.hash === here) complain(error);
  } finally {
    at("main").removeAttribute("aria-busy");
  }
}

function route() {
  forgive();
  const [view, which] = location.hash.slice(1).split("/");
  const number = /^\d+$/.test(which ?? "") ? Number(which) : null;
  if (view === "asked" && asked[number]) return openAsked(asked[number]);
  if (view === "answers" && number !== null) return openTrace(() => read(`clew/answers/${number}`), { href: "#answers", words: "Explorer" }, "answers");
  if (view === "answers") { show("answers", "answers"); return showAnswers(); }
  if (view === "check" || (!hasModel && view !== "answers" && view !== "comparisons")) { show("check", "check"); return showCheck(); }
  if (view === "comparisons") { show("comparisons", "comparisons"); return showComparisons(); }
  return show("ask", "ask");
}

function openAsked(one) {
  const load = async () => (one.trace ??= await traceAsked(one));
  return openTrace(load, { href: "#ask", words: "Ask" }, "ask");
}

// The risks of the answer came with it.
async function traceAsked(one) {
  const { tokens } = one.line;
  const trace = await read("clew/trace", { question: one.question, context: one.context || null, tokens: tokens.map((token) => token.id) });
  trace.clew = one.clew;
  trace.tokens.forEach((token, place) => { token.risk = tokens[place].risk; });
  return trace;
}

async function start() {
  try {
    if (await isLoading()) {
      at("served").textContent = "The model is loading …";
      setTimeout(start, 1000);
      return;
    }
    const info = await read("clew/page");
    const served = info.live ? `${info.live.model} · ${info.live.detector}` : "";
    at("served").textContent = served;
    at("warning").textContent = info.live?.warning ? `Warning: ${info.live.warning}.` : "";
    at("warning").hidden = !info.live?.warning;
    hasModel = info.live !== null || info.upstream;
    if (info.upstream) await takeUpstream();
    document.querySelector('[data-view="ask"]').hidden = !hasModel;
    takeFeedback(info.feedback);
    document.title = info.live ? `clew · ${info.live.model}` : "clew";
    if (!isBrowsing) startBrowsing(info.store);
    isBrowsing = true;
  } catch (error) {
    complain(error);
    return;
  }
  route();
}

askForKey(start);
at("skip").addEventListener("click", (event) => { event.preventDefault(); document.querySelector("main > section:not([hidden]) h1")?.focus(); });
window.addEventListener("hashchange", route);
startAsking();
startChecking();
start();
