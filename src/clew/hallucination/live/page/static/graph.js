// The attention of a layer as arcs between tokens; another layer is drawn in place.
import { element, percent, svg } from "./parts.js";

const STEP = 17, TOP = 10;

export class AttentionGraph {
  constructor(graph) {
    this.graph = graph;
    [this.x, this.width] = window.innerWidth < 600 ? [150, 330] : [300, 520]; // texts stay legible
    this.layer = 0;
    this.options = { first: false, inside: false };
    this.pinned = null;
    this.arcs = svg("g", { class: "arcs" });
    const height = 2 * TOP + STEP * graph.texts.length;
    this.rows = graph.texts.map((text, row) => this.drawRow(text, row));
    const border = graph.start > 0 && graph.start < graph.texts.length ? this.drawBorder() : null;
    this.picture = svg("svg", { viewBox: `0 0 ${this.width} ${height}`, class: "graph", role: "img", "aria-label": "Attention between the tokens" }, border, this.arcs, this.rows);
    this.shares = element("p", { class: "shares", "aria-live": "polite" });
    this.focus = element("p", { class: "focus quiet" });
    this.node = element("div", {}, this.shares, this.focus, this.picture);
  }

  drawRow(text, row) {
    const y = TOP + STEP * (row + 0.5), { x, width } = this;
    const part = row >= this.graph.start ? "answer" : "prompt";
    const made = svg("g", { class: `row ${part}` },
      svg("rect", { x: x - 8, y: y - STEP / 2, width: width - x + 8, height: STEP }),
      svg("circle", { cx: x, cy: y, r: 2 }),
      svg("text", { x: x + 14, y: y + 4 }, text));
    made.addEventListener("pointerenter", () => this.point(row));
    made.addEventListener("pointerleave", () => this.point(this.pinned));
    made.addEventListener("click", () => { this.pinned = this.pinned === row ? null : row; this.point(this.pinned); });
    return made;
  }

  drawBorder() {
    const y = TOP + STEP * this.graph.start, { x, width } = this;
    return svg("g", { class: "border" },
      svg("line", { x1: x - 8, x2: width, y1: y, y2: y }),
      svg("text", { x: width - 4, y: y - 5 }, "prompt"), svg("text", { x: width - 4, y: y + 13 }, "answer"));
  }

  edges() {
    const flat = this.graph.edges[this.layer] ?? [], found = [], { start, texts } = this.graph;
    for (let i = 0; i < flat.length; i += 3) {
      const [source, target, weight] = [flat[i], flat[i + 1], flat[i + 2] / 1000];
      if (source === 0 && !this.options.first) continue;
      if (target < start && start < texts.length && !this.options.inside) continue;
      found.push({ source, target, weight });
    }
    return found;
  }

  show(layer, options) {
    this.layer = layer;
    Object.assign(this.options, options);
    const edges = this.edges(), farthest = Math.max(1, this.graph.texts.length - 1);
    const y = (row) => TOP + STEP * (row + 0.5), { x } = this;
    this.arcs.replaceChildren(...edges.slice().reverse().map(({ source, target, weight }) => {
      const left = (x - (x - 14) * 1.3 * Math.pow((target - source) / farthest, 0.62)).toFixed(1);
      const kind = target < this.graph.start ? "inside" : source < this.graph.start ? "to-prompt" : "to-answer";
      return svg("path", {
        d: `M${x} ${y(target)}C${left} ${y(target)} ${left} ${y(source)} ${x} ${y(source)}`, class: kind,
        "stroke-width": (0.6 + 9 * weight).toFixed(2), "stroke-opacity": Math.min(0.9, 0.08 + 4.5 * weight).toFixed(2),
        "data-source": source, "data-target": target,
      });
    }));
    this.sizeDots(edges);
    this.tellShares();
    this.point(this.pinned);
  }

  // A token that the answer attends to strongly has a large dot.
  sizeDots(edges) {
    const received = new Float64Array(this.graph.texts.length);
    for (const { source, target, weight } of edges) if (target >= this.graph.start) received[source] += weight;
    const answers = Math.max(1, this.graph.texts.length - this.graph.start);
    this.rows.forEach((row, place) => row.querySelector("circle").setAttribute("r", Math.min(7, 1.8 + 12.6 * Math.sqrt(received[place] / answers)).toFixed(1)));
  }

  tellShares() {
    const [first, prompt, answer, itself, rest] = this.graph.shares[this.layer].map(percent);
    this.shares.textContent = `Layer ${this.layer}: the answer gives ${prompt} of its attention to the prompt, ${first} to the first token, ` +
      `${answer} to earlier tokens of the answer and ${itself} to the token itself; ${rest} lies on weaker edges that are not recorded.`;
  }

  point(row) {
    this.picture.classList.toggle("pointed", row !== null);
    for (const path of this.arcs.children) path.classList.toggle("on", row !== null && (+path.dataset.source === row || +path.dataset.target === row));
    this.rows.forEach((one, place) => one.classList.toggle("pinned", place === this.pinned));
    if (row === null) { this.focus.textContent = "Point at a token to see only its own arcs; click to keep them."; return; }
    const list = (pairs) => pairs.slice(0, 4).map(([other, weight]) => `“${this.graph.texts[other]}” ${percent(weight)}`).join(", ") || "no token drawn";
    const looks = this.edges().filter((edge) => edge.target === row).map((edge) => [edge.source, edge.weight]);
    const seen = this.edges().filter((edge) => edge.source === row).map((edge) => [edge.target, edge.weight]);
    this.focus.textContent = `“${this.graph.texts[row]}” attends to ${list(looks)}; attended to by ${list(seen)}.`;
  }
}
