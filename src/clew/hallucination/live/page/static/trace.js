// The trace of one answer: its risk through the layers, attention, nearest known answers, tokens.
import { AttentionGraph } from "./graph.js";
import { at, counted, describeToken, element, gauge, labelChip, percent, shadeLegend, svg, TokenLine, withSettings } from "./parts.js";

const HEIGHT = 230, LEFT = 44, RIGHT = 14, TOP = 14, BOTTOM = 34;

export function showTrace(trace, back) {
  const layers = trace.layers;
  const state = { layer: trace.near?.layer ?? Math.floor(layers / 2), first: false, inside: false, whole: false };
  if (state.layer >= layers) state.layer = Math.max(0, layers - 1);
  const graphs = trace.graphs.map((graph) => new AttentionGraph(graph));
  const course = trace.course ? drawCourse(trace.course, (layer) => choose(layer)) : null;
  const slider = element("input", { type: "range", id: "layer", min: "0", max: String(Math.max(0, layers - 1)), value: String(state.layer) });
  const number = element("output", { id: "layer-number", for: "layer" });

  function choose(layer) {
    state.layer = layer;
    slider.value = String(layer);
    draw();
  }

  function draw() {
    number.textContent = String(state.layer);
    course?.show(state.layer);
    graphs.forEach((graph, place) => {
      graph.node.hidden = graphs.length > 1 && (place === 1) !== state.whole;
      if (!graph.node.hidden) graph.show(state.layer, state);
    });
  }

  slider.addEventListener("input", () => choose(Number(slider.value)));
  const boxes = [
    graphs.length > 1 ? ["whole", "whole prompt"] : null, ["first", "attention to the first token"], ["inside", "attention within the prompt"],
  ].filter(Boolean).map(([name, words]) => {
    const box = element("input", { type: "checkbox", id: `show-${name}` });
    box.addEventListener("input", () => { state[name] = box.checked; draw(); });
    return element("label", { class: "check" }, box, ` ${words}`);
  });
  const toolbar = layers ? element("div", { class: "toolbar" }, element("label", { for: "layer" }, "Layer"), slider, number,
    element("span", { class: "quiet" }, `of 0 to ${layers - 1}`)) : null;

  at("trace").replaceChildren(
    element("p", { class: "back" }, element("a", { href: back.href }, `← ${back.words}`)),
    drawHead(trace),
    toolbar ?? "",
    element("div", { class: "layered" },
      graphs.length ? panel("Attention", "An arc leads from a token of the answer up to one that it attends to, averaged over heads: wider is stronger. Colored arcs lead into the prompt, which is folded to the question.", [element("p", { class: "checks" }, boxes), graphs.map((graph) => graph.node)], "attention") : null,
      element("div", {}, drawCoursePanel(trace, course), drawNearPanel(trace))),
    drawTokens(trace),
    trace.notes.length ? element("ul", { class: "notes quiet" }, trace.notes.map((note) => element("li", {}, withSettings(note)))) : "");
  draw();
}

function panel(title, words, content, name) {
  return element("section", { class: `panel ${name || ""}` }, element("h2", {}, title), words ? element("p", { class: "dek" }, words) : null, content);
}

function drawHead(trace) {
  const line = new TokenLine();
  for (const token of trace.tokens) line.add(token);
  const source = trace.number === null ? null : ["answer " + trace.number, trace.question_id, trace.category, trace.ended && `stop reason: ${trace.ended}`].filter(Boolean).join(" · ");
  const facts = element("div", { class: "text" },
    source ? element("p", { class: "quiet" }, labelChip(trace.label), ` ${source}`) : null,
    element("h1", { id: "trace-title", tabindex: "-1" }, trace.question || "(no question)"),
    trace.context ? element("details", { class: "context" }, element("summary", {}, "Context"), element("p", {}, trace.context)) : null,
    trace.tokens.length ? [line.line, line.words, shadeLegend(line.hasRisk)] : element("p", { class: "answer-text" }, trace.answer || "(empty)"),
    trace.accepted ? element("p", { class: "accepted" }, element("span", { class: "quiet" }, "accepted: "), trace.accepted) : null);
  return element("article", { class: "card" }, facts, gauge(trace.clew ?? { risk: null, reason: noRisk(trace) }));
}

const noRisk = (trace) => (trace.number === null ? null : "no comparison has a risk for this stored answer: it is in the training split, or there is no comparison");

function drawCoursePanel(trace, course) {
  if (!course) return panel("Risk through the layers", null, element("p", { class: "empty" }, withSettings(trace.known || "This answer has no hidden states to compare.")), "course");
  const { answers, base_rate: rate } = trace.course;
  const words = `A linear probe per layer reads the last token's hidden state: fitted on ${counted(answers, "known answer")}, calibrated on those held out. ` +
    `It shows where in the model the risk appears; the detector's own risk is in the gauge. Dashed: the share of hallucinated answers, ${percent(rate)}.`;
  return panel("Risk through the layers", words, course.node, "course");
}

function drawCourse({ risks, aurocs, base_rate: rate }, choose) {
  const width = window.innerWidth < 600 ? 350 : 560; // texts stay legible
  const x = (layer) => LEFT + (layer / Math.max(1, risks.length - 1)) * (width - LEFT - RIGHT);
  const y = (risk) => HEIGHT - BOTTOM - risk * (HEIGHT - TOP - BOTTOM);
  const step = Math.max(1, Math.ceil(risks.length / 8));
  const levels = [0, 0.25, 0.5, 0.75, 1].map((value) => svg("g", {},
    svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: "grid" }),
    svg("text", { x: LEFT - 7, y: y(value) + 4, class: "tick end" }, percent(value))));
  const ticks = risks.map((_, layer) => layer).filter((layer) => layer % step === 0)
    .map((layer) => svg("text", { x: x(layer), y: HEIGHT - 16, class: "tick middle" }, String(layer)));
  const points = risks.map((risk, layer) => `${x(layer).toFixed(1)},${y(risk).toFixed(1)}`);
  const area = `${x(0)},${y(0)} ${points.join(" ")} ${x(risks.length - 1)},${y(0)}`;
  const dots = risks.map((risk, layer) => {
    const dot = svg("circle", { cx: x(layer), cy: y(risk), r: 3.2, class: risk > rate ? "above" : "below" });
    const target = svg("rect", { x: x(layer) - 8, y: TOP, width: 16, height: HEIGHT - TOP - BOTTOM, class: "target" });
    target.addEventListener("click", () => choose(layer));
    return [dot, target];
  });
  const now = svg("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "now-line" });
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, class: "plot", role: "img", "aria-label": `Risk at layers 0 to ${risks.length - 1}: from ${percent(risks[0])} to ${percent(risks.at(-1))}` },
    levels, ticks, svg("text", { x: width - RIGHT, y: HEIGHT - 2, class: "tick end" }, "layer"),
    svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(rate), y2: y(rate), class: "base" }),
    svg("polygon", { points: area, class: "area" }), now, svg("polyline", { points: points.join(" "), class: "curve" }), dots);
  const words = element("p", { class: "shares", "aria-live": "polite" });
  return {
    node: element("div", {}, words, picture),
    show(layer) {
      now.setAttribute("x1", x(layer));
      now.setAttribute("x2", x(layer));
      dots.forEach(([dot], place) => dot.classList.toggle("now", place === layer));
      words.textContent = `Layer ${layer}: risk ${percent(risks[layer])}. The probe's AUROC on held-out answers is ${aurocs[layer].toFixed(2)}.`;
    },
  };
}

function drawNearPanel(trace) {
  const near = trace.near;
  if (!near) return trace.course ? panel("Nearest known answers", null, element("p", { class: "empty" }, withSettings(trace.known)), "near") : null;
  const summary = near.labeled ? `${near.hallucinated} of the ${near.labeled} nearest are hallucinated.` : "They have no labels.";
  const words = `Cosine similarity of the last token's hidden state in layer ${near.layer}, after subtracting the mean, among ${counted(near.answers, "known answer")}.`;
  const rows = near.items.map((item) => element("li", {}, element(trace.has_links ? "a" : "div", { href: trace.has_links ? `#answers/${item.number}` : null, class: "row-link" },
    element("span", { class: "row-text" }, element("b", {}, item.question || "(no question)"), element("span", {}, item.answer || "(empty)")),
    labelChip(item.label), element("span", { class: "similarity", title: "cosine similarity" }, item.similarity.toFixed(2)))));
  return panel("Nearest known answers", words, [element("p", { class: "shares" }, summary), element("ol", { class: "rows near-rows" }, rows)], "near");
}

function drawTokens(trace) {
  if (!trace.tokens.some((token) => token.logprob !== null)) return "";
  const chips = trace.tokens.map((token) => {
    const chance = token.logprob === null ? 0 : Math.exp(token.logprob);
    const chip = element("li", { class: "token-chip", title: describeToken(token) }, element("span", { class: "token-text" }, token.shown),
      element("i", { class: "bar", "aria-hidden": "true" }), element("small", {}, percent(chance)), token.risk === null ? null : element("small", { class: "chip-risk" }, `risk ${percent(token.risk)}`));
    chip.style.setProperty("--chance", chance.toFixed(3));
    chip.style.setProperty("--shade", (token.risk ?? 1 - chance).toFixed(3));
    chip.classList.toggle("unsure", token.risk === null);
    return chip;
  });
  return panel("Token probabilities", `The bar is the probability that the model gave the token. ${trace.summary}`, [shadeLegend(trace.tokens.some((token) => token.risk !== null)), element("ol", { class: "token-chips" }, chips)], "probabilities");
}
