// What every view is built from: the gauge, tokens, chips, and what all pages have.
import { element, percent, sentence, svg } from "./api.js";

export * from "./api.js";

// The risk of an answer in words: what was decided, and what it rests on. A detector speaks of risk: it does not know
// what is correct.
export function verdictWords(clew) {
  if (clew?.withheld) return { ...riskWords(clew), title: "Withheld" };
  return riskWords(clew);
}

function riskWords(clew) {
  if (clew?.state === "out_of_distribution") {
    const other = clew.token_probability_risk ?? null;
    const rule = other === null ? "" : `Its token-probability risk, which says less, is ${percent(other)}.`;
    const advice = "To get a verdict, label answers of this kind and train a detector on them, too.";
    return { title: "Not familiar: no verdict", kind: "unlike", detail: `${sentence(clew.reason)} ${advice}`, rule };
  }
  if (!clew || clew.risk === null || clew.risk === undefined) {
    return { title: "Not checked", kind: "unavailable", detail: sentence(clew?.reason) || "There is no risk for this answer." };
  }
  const isHigh = clew.risk_level === "high";
  const rule = clew.threshold === null || clew.threshold === undefined ? "" : `${isHigh ? "Above" : "Not above"} the threshold of ${percent(clew.threshold)}.`;
  return { title: isHigh ? "High risk" : "Low risk", kind: clew.risk_level || "unknown", detail: rule, method: clew.method };
}

const RADIUS = 92, MIDDLE = [110, 108], LENGTH = Math.PI * RADIUS;
const onArc = (share, radius) => {
  const angle = Math.PI * (1 - share);
  return [MIDDLE[0] + radius * Math.cos(angle), MIDDLE[1] - radius * Math.sin(angle)];
};

// A dial from 0 to 1 with the threshold. Without a risk it stays empty: that is not a low risk.
export function gauge(clew, isPending) {
  const words = isPending ? { title: "Answering", kind: "pending", detail: "" } : verdictWords(clew);
  const risk = isPending || !clew ? null : clew.risk ?? null;
  const arc = `M${MIDDLE[0] - RADIUS} ${MIDDLE[1]}A${RADIUS} ${RADIUS} 0 0 1 ${MIDDLE[0] + RADIUS} ${MIDDLE[1]}`;
  const parts = [svg("path", { d: arc, class: "track" })];
  if (risk !== null) {
    const filled = Math.max(0.004, risk) * LENGTH;
    parts.push(svg("path", { d: arc, class: "fill", "stroke-dasharray": `${filled.toFixed(1)} ${(LENGTH + 20).toFixed(1)}` }));
  }
  if (risk !== null && clew.threshold !== null && clew.threshold !== undefined) {
    const [[x1, y1], [x2, y2]] = [onArc(clew.threshold, RADIUS - 15), onArc(clew.threshold, RADIUS + 15)];
    parts.push(svg("line", { x1, y1, x2, y2, class: "mark" }));
  }
  parts.push(svg("text", { x: MIDDLE[0], y: MIDDLE[1] - 14, class: "figure" }, risk === null ? (isPending ? "…" : "?") : percent(risk)));
  parts.push(svg("text", { x: MIDDLE[0], y: MIDDLE[1] + 8, class: "unit" }, risk === null ? "no risk" : "risk"));
  if (risk !== null) {
    parts.push(svg("text", { x: MIDDLE[0] - RADIUS, y: MIDDLE[1] + 20, class: "end-mark" }, "0"));
    parts.push(svg("text", { x: MIDDLE[0] + RADIUS, y: MIDDLE[1] + 20, class: "end-mark" }, "1"));
  }
  const label = risk === null ? `${words.title}. ${words.detail}` : `Risk ${percent(risk)}, threshold ${percent(clew.threshold)}: ${words.title}`;
  const dial = svg("svg", { viewBox: "0 0 220 134", role: "img", "aria-label": label, class: "dial" }, parts);
  return element("div", { class: `gauge ${words.kind}` }, dial,
    element("p", { class: "verdict" }, words.title),
    words.detail ? element("p", { class: "quiet" }, words.detail) : null,
    words.rule ? element("p", { class: "quiet" }, words.rule) : null,
    words.method ? element("p", { class: "quiet method" }, `Method: ${words.method}`) : null);
}

export const labelChip = (label) => element("span", { class: `chip ${label || "unknown"}` }, label || "no label");

// A risk on a small line with the threshold.
export function riskBar(risk, threshold, reason) {
  if (risk === null || risk === undefined) {
    const why = sentence(reason) || "No risk: the method was fitted on this answer, or it has none.";
    return element("span", { class: "risk-bar none", title: why }, reason ? "unavailable" : "no risk");
  }
  const level = risk > threshold ? "high" : "low";
  const line = svg("svg", { viewBox: "0 0 60 10", "aria-hidden": "true", preserveAspectRatio: "none" },
    svg("rect", { x: 0, y: 3, width: 60, height: 4, rx: 2, class: "track" }),
    svg("rect", { x: 0, y: 3, width: Math.max(1, 60 * risk).toFixed(1), height: 4, rx: 2, class: "fill" }),
    svg("rect", { x: (60 * threshold - 0.6).toFixed(1), y: 0, width: 1.2, height: 10, class: "mark" }));
  return element("span", { class: `risk-bar ${level}` }, line, element("b", {}, percent(risk)),
    element("span", { class: "hidden-label" }, `: ${level} risk`));
}

// The tokens of an answer, shaded by their risk, or by their improbability where there is no risk.
export class TokenLine {
  constructor() {
    this.line = element("p", { class: "answer-text", tabindex: "0", role: "group", "aria-label": "Tokens of the answer: use the arrow keys to read the risk of each" });
    this.words = element("p", { class: "token-words quiet", "aria-live": "polite" });
    this.tokens = [];
    this.at = -1;
    this.line.addEventListener("keydown", (event) => this.key(event));
    this.line.addEventListener("pointerover", (event) => this.point(event.target));
    this.line.addEventListener("pointerdown", (event) => this.point(event.target));
    this.line.addEventListener("blur", () => this.show(-1));
    this.line.addEventListener("pointerleave", () => { if (document.activeElement !== this.line) this.show(-1); });
  }

  add(token) {
    const shade = token.risk ?? (token.logprob === null || token.logprob === undefined ? 0 : 1 - Math.exp(token.logprob));
    const [, space, rest] = /^(\s*)([^]*)$/.exec(token.token); // a space is no part of the shade
    const span = element("span", { class: token.risk === null || token.risk === undefined ? "token unsure" : "token" }, rest || space);
    span.style.setProperty("--shade", shade.toFixed(3));
    span.dataset.place = this.tokens.length;
    this.tokens.push(token);
    if (rest && space && (this.tokens.length > 1 || space.includes("\n"))) this.line.append(space);
    this.line.append(span);
  }

  clear() {
    this.tokens = [];
    this.line.replaceChildren();
    this.show(-1);
  }

  get hasRisk() {
    return this.tokens.some((token) => token.risk !== null && token.risk !== undefined);
  }

  point(target) {
    if (target.dataset.place !== undefined) this.show(Number(target.dataset.place));
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const jump = { Home: 0, End: this.tokens.length - 1 }[event.key];
    if (step === undefined && jump === undefined) return;
    event.preventDefault();
    if (this.tokens.length) this.show(jump ?? Math.min(this.tokens.length - 1, Math.max(0, this.at + step)));
  }

  show(place) {
    this.line.children[this.at]?.classList.remove("now");
    this.at = place;
    const token = this.tokens[place];
    this.line.children[place]?.classList.add("now");
    this.words.textContent = token ? describeToken(token) : "";
  }
}

export function describeToken(token) {
  const parts = [`“${token.shown ?? visible(token.token)}”`];
  if (token.risk !== null && token.risk !== undefined) parts.push(`risk ${percent(token.risk)}`);
  if (token.logprob !== null && token.logprob !== undefined) parts.push(`probability ${percent(Math.exp(token.logprob))}`);
  if (token.entropy !== null && token.entropy !== undefined) parts.push(`entropy ${token.entropy.toFixed(2)} nats`);
  return parts.join(" · ");
}

const visible = (text) => text.replace(/\n/g, "↵").replace(/\t/g, "⇥").trim() || "␣";

export function shadeLegend(hasRisk) {
  const words = hasRisk ? "token risk, 0 to 1" : "no token risk: 1 − probability, 0 to 1";
  return element("p", { class: "legend quiet" }, element("i", { class: hasRisk ? "scale" : "scale unsure", "aria-hidden": "true" }), words);
}
