"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const figures = [...document.querySelectorAll("figure.graph")];
  const slider = document.getElementById("layer");
  const percent = (share) => (share > 0 && share < 0.005 ? "<1%" : Math.round(share * 100) + "%");
  const isChecked = (name) => document.getElementById(name)?.checked ?? false;

  // The edges of a layer that are wanted, as [source, target, weight].
  function edgesOf(graph, layer) {
    const flat = graph.edges[layer], found = [];
    for (let at = 0; at < flat.length; at += 3) {
      const [source, target, weight] = [flat[at], flat[at + 1], flat[at + 2] / 1000];
      if (source === 0 && !isChecked("first")) continue;
      if (target < graph.start && graph.start < graph.texts.length && !isChecked("inside")) continue;
      found.push([source, target, weight]);
    }
    return found;
  }

  function drawArcs(figure, graph, edges) {
    const svg = figure.querySelector("svg"), layer = svg.querySelector(".arcs");
    const x = +svg.dataset.x, step = +svg.dataset.row, top = +svg.dataset.top;
    const y = (row) => top + step * (row + 0.5), farthest = Math.max(1, graph.texts.length - 1);
    layer.replaceChildren(...edges.slice().reverse().map(([source, target, weight]) => {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      const bow = (x - 14) * 1.3 * Math.pow((target - source) / farthest, 0.62);
      path.setAttribute("d", `M${x} ${y(target)}C${x - bow} ${y(target)} ${x - bow} ${y(source)} ${x} ${y(source)}`);
      path.style.strokeWidth = (0.6 + 9 * weight).toFixed(2);
      path.style.opacity = Math.min(0.9, 0.08 + 4.5 * weight).toFixed(2);
      path.setAttribute("class", target < graph.start ? "inside" : source < graph.start ? "to-prompt" : "to-answer");
      path.dataset.source = source;
      path.dataset.target = target;
      return path;
    }));
  }

  // A token that the answer attends to strongly has a large dot.
  function sizeDots(figure, graph, edges) {
    const received = new Float64Array(graph.texts.length);
    for (const [source, target, weight] of edges) if (target >= graph.start) received[source] += weight;
    const answers = Math.max(1, graph.texts.length - graph.start);
    for (const row of figure.querySelectorAll(".row")) {
      const share = received[+row.dataset.at] / answers;
      row.querySelector("circle").setAttribute("r", Math.min(7, 1.6 + 14 * Math.sqrt(share) * 0.9).toFixed(1));
    }
  }

  function tellShares(figure, graph, layer) {
    const [first, prompt, answer, itself, rest] = graph.shares[layer].map(percent);
    figure.querySelector(".shares").textContent =
      `Attention of ${graph.start < graph.texts.length ? "the answer" : "all tokens"} in layer ${layer}: ` +
      `${first} on the first token, ${prompt} on the rest of the prompt, ${answer} on earlier tokens of the answer, ` +
      `${itself} on the token itself, ${rest} on weaker edges that are not stored.`;
  }

  function describe(graph, edges, row) {
    const list = (pairs) => pairs.slice(0, 4).map(([other, weight]) => `“${graph.texts[other]}” ${percent(weight)}`).join(", ");
    const looks = edges.filter((edge) => edge[1] === row).map((edge) => [edge[0], edge[2]]);
    const seen = edges.filter((edge) => edge[0] === row).map((edge) => [edge[1], edge[2]]);
    return `“${graph.texts[row]}” attends to ${list(looks) || "no token drawn"}; attended to by ${list(seen) || "no token drawn"}.`;
  }

  function point(figure, graph, row) {
    const edges = edgesOf(graph, +slider.value);
    figure.classList.toggle("pointed", row !== null);
    for (const path of figure.querySelectorAll(".arcs path"))
      path.classList.toggle("on", row !== null && (+path.dataset.source === row || +path.dataset.target === row));
    figure.querySelector(".focus").textContent = row === null ? "" : describe(graph, edges, row);
  }

  function listen(figure, graph) {
    let pinned = null;
    const repaint = (row) => point(figure, graph, row ?? pinned);
    for (const row of figure.querySelectorAll(".row")) {
      const at = +row.dataset.at;
      row.addEventListener("mouseenter", () => repaint(at));
      row.addEventListener("mouseleave", () => repaint(null));
      row.addEventListener("click", () => {
        pinned = pinned === at ? null : at;
        for (const other of figure.querySelectorAll(".row")) other.classList.toggle("pinned", +other.dataset.at === pinned);
        repaint(null);
      });
    }
    return () => repaint(null);
  }

  const repaints = figures.map((figure, place) => listen(figure, data.graphs[place]));

  function show() {
    const layer = +slider.value;
    document.querySelector("main").classList.toggle("unfolded", isChecked("whole"));
    document.getElementById("layer-number").textContent = layer;
    for (const mark of document.querySelectorAll("[data-layer]")) mark.classList.toggle("now", +mark.dataset.layer === layer);
    figures.forEach((figure, place) => {
      const graph = data.graphs[place], edges = edgesOf(graph, layer);
      drawArcs(figure, graph, edges);
      sizeDots(figure, graph, edges);
      tellShares(figure, graph, layer);
      repaints[place]();
    });
  }

  if (!slider) return;
  for (const control of document.querySelectorAll(".toolbar input")) control.addEventListener("input", show);
  // A reloaded page keeps the position of the slider: redraw to match it.
  show();
})();
