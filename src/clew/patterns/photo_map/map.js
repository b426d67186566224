"use strict";
// Draws every photo map of the page. Points are painted on a canvas: thousands of elements would
// make the page slow.
for (const block of document.querySelectorAll(".photo-map")) {
  const data = JSON.parse(block.querySelector(".map-data").textContent);
  const canvas = block.querySelector("canvas"), pen = canvas.getContext("2d");
  const tip = block.querySelector(".map-tip"), legend = block.querySelector(".map-legend");
  const picture = tip.querySelector(".map-picture"), words = tip.querySelector(".map-words");
  const reset = block.querySelector(".map-reset");
  const choices = [...block.querySelectorAll(".map-choice")];
  const count = data.names.length, margin = 14, reach = 14;
  const whole = { x: 0, y: 0, scale: 1 };
  let coloring = data.colorings[0], chosen = null, hovered = -1, view = { ...whole };
  let wide = 0, high = 0;
  if (data.thumbnails) block.style.setProperty("--sheet", `url("${data.thumbnails.address}")`);

  const color = (name) => {
    if (/^(#|hsl)/.test(name)) return name;
    return getComputedStyle(block).getPropertyValue(`--${name}`).trim() || name;
  };
  const place = (index) => [
    margin + (data.x[index] / data.steps - view.x) * view.scale * (wide - 2 * margin),
    margin + (data.y[index] / data.steps - view.y) * view.scale * (high - 2 * margin),
  ];
  const radius = () => Math.min(7, Math.max(2, (90 / Math.sqrt(count + 1)) * Math.sqrt(view.scale)));

  const paint = () => {
    const size = radius(), colors = coloring.colors.map(color);
    const dot = (index, grow) => {
      const [x, y] = place(index);
      if (x < -size || y < -size || x > wide + size || y > high + size) return;
      pen.fillStyle = colors[coloring.of[index] % colors.length];
      pen.beginPath();
      pen.arc(x, y, size + grow, 0, 2 * Math.PI);
      pen.fill();
    };
    pen.clearRect(0, 0, wide, high);
    // Groups with few photos, such as mistakes, are drawn last: nothing covers them.
    const sizes = new Map();
    for (const group of coloring.of) sizes.set(group, (sizes.get(group) ?? 0) + 1);
    const order = [...sizes.keys()].sort((one, other) => sizes.get(other) - sizes.get(one));
    for (const group of order) {
      pen.globalAlpha = chosen === null ? 0.75 : group === chosen ? 0.9 : 0.07;
      for (let index = 0; index < count; index++) if (coloring.of[index] === group) dot(index, 0);
    }
    pen.globalAlpha = 1;
    if (hovered >= 0) {
      const [x, y] = place(hovered);
      dot(hovered, 1.5);
      pen.strokeStyle = color("ink");
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.arc(x, y, size + 3, 0, 2 * Math.PI);
      pen.stroke();
    }
  };

  const fit = () => {
    const ratio = window.devicePixelRatio || 1;
    wide = canvas.clientWidth;
    high = canvas.clientHeight;
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(high * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint();
  };

  const element = (name, className, text = "") => {
    const made = document.createElement(name);
    made.className = className;
    made.textContent = text;
    return made;
  };
  const list = () => {
    const counts = coloring.groups.map(() => 0);
    for (const group of coloring.of) counts[group]++;
    legend.classList.toggle("chosen", chosen !== null);
    legend.replaceChildren(...coloring.groups.flatMap((name, group) => {
      if (!counts[group]) return [];
      const key = element("button", "map-key");
      const dot = element("span", "dot"), label = element("bdi", "group", name);
      key.type = "button";
      key.setAttribute("aria-pressed", String(group === chosen));
      dot.style.background = color(coloring.colors[group % coloring.colors.length]);
      key.append(dot, label, element("span", "count", counts[group].toLocaleString("en")));
      key.addEventListener("click", () => {
        chosen = chosen === group ? null : group;
        list();
        paint();
      });
      return [key];
    }));
  };

  const find = (x, y) => {
    let best = -1, least = reach * reach;
    for (let index = 0; index < count; index++) {
      if (chosen !== null && coloring.of[index] !== chosen) continue;
      const [px, py] = place(index), far = (px - x) ** 2 + (py - y) ** 2;
      if (far < least) [best, least] = [index, far];
    }
    return best;
  };
  const show = (index) => {
    const sheet = data.thumbnails;
    picture.replaceChildren();
    picture.className = "map-picture";
    picture.removeAttribute("style");
    if (sheet && index < sheet.count) {
      const row = Math.floor(index / sheet.columns), column = index % sheet.columns;
      const side = 96, rows = Math.ceil(sheet.count / sheet.columns);
      picture.classList.add("sheet");
      picture.style.backgroundSize = `${side * Math.min(sheet.columns, sheet.count)}px ${side * rows}px`;
      picture.style.backgroundPosition = `-${side * column}px -${side * row}px`;
    } else if (data.addresses[index]) {
      const image = document.createElement("img");
      image.alt = "";
      image.src = data.addresses[index];
      picture.append(image);
    }
    const lines = data.colorings.map((one) => element("div", "", `${one.name}: ${one.groups[one.of[index]]}`));
    const note = data.notes[index] ? [element("div", "", data.notes[index])] : [];
    words.replaceChildren(element("b", "", data.names[index]), ...note, ...lines);
  };
  const hover = (event) => {
    const box = canvas.getBoundingClientRect();
    const found = find(event.clientX - box.left, event.clientY - box.top);
    if (found !== hovered) {
      hovered = found;
      tip.hidden = found < 0;
      if (found >= 0) show(found);
      paint();
    }
    if (found < 0) return;
    const around = block.getBoundingClientRect();
    const x = event.clientX - around.left, y = event.clientY - around.top;
    tip.style.left = `${Math.max(0, Math.min(x + 16, around.width - tip.offsetWidth))}px`;
    const isLow = event.clientY + 20 + tip.offsetHeight > window.innerHeight;
    tip.style.top = `${isLow ? y - tip.offsetHeight - 14 : y + 18}px`;
  };
  const leave = () => {
    hovered = -1;
    tip.hidden = true;
    paint();
  };

  canvas.addEventListener("pointermove", hover);
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("click", () => {
    if (hovered >= 0) block.dispatchEvent(new CustomEvent("photochosen", { detail: hovered, bubbles: true }));
  });
  canvas.addEventListener("dblclick", (event) => {
    const box = canvas.getBoundingClientRect(), scale = Math.min(32, view.scale * 2);
    const middle = [(event.clientX - box.left - margin) / (wide - 2 * margin), (event.clientY - box.top - margin) / (high - 2 * margin)];
    const at = [view.x + middle[0] / view.scale, view.y + middle[1] / view.scale];
    view = { x: at[0] - middle[0] / scale, y: at[1] - middle[1] / scale, scale };
    reset.hidden = false;
    paint();
  });
  reset.addEventListener("click", () => {
    view = { ...whole };
    reset.hidden = true;
    paint();
  });
  choices.forEach((choice) => choice.addEventListener("click", () => {
    coloring = data.colorings[Number(choice.dataset.place)];
    chosen = null;
    choices.forEach((one) => one.setAttribute("aria-pressed", String(one === choice)));
    list();
    paint();
  }));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { list(); paint(); });
  new ResizeObserver(fit).observe(canvas);
  list();
  fit();
}
