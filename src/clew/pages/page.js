"use strict";
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const ofKey = (key) => all("[data-key]").filter((element) => element.dataset.key === key);

  // Elements with the same key are highlighted together.
  const raise = (curve) => curve.parentNode.append(curve);
  const light = (name, isOn) => ofKey(name).forEach((element) => element.classList.toggle("hot", isOn));

  const tip = document.getElementById("tip");
  const place = (event) => {
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
    const below = event.clientY + 18;
    const y = below + box.height < window.innerHeight ? below : event.clientY - box.height - 12;
    tip.style.left = `${Math.max(8, x)}px`;
    tip.style.top = `${y}px`;
  };

  let lit = null;
  document.addEventListener("pointermove", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    const named = target?.closest("[data-key]")?.dataset.key ?? null;
    if (named !== lit) {
      if (lit !== null) light(lit, false);
      if (named !== null) light(named, true);
      lit = named;
    }
    const pointed = target?.closest("[data-tip]");
    tip.hidden = !pointed;
    if (pointed) {
      tip.textContent = pointed.dataset.tip;
      place(event);
    }
  });
  document.addEventListener("pointerleave", () => { tip.hidden = true; });

  // In a matrix with many classes, the row and the column under the pointer stand out.
  for (const matrix of all("svg.matrix")) {
    const [left, top, cell] = ["left", "top", "cell"].map((name) => Number(matrix.dataset[name]));
    const marks = matrix.querySelector(".marks");
    const [rows, columns] = ["row", "column"].map((name) => [...matrix.querySelectorAll(`.name.${name}`)]);
    const mark = (row, column) => {
      const isOn = row in rows && column in columns;
      marks.classList.toggle("on", isOn);
      if (isOn) {
        marks.firstElementChild.setAttribute("y", top + cell * row);
        marks.lastElementChild.setAttribute("x", left + cell * column);
      }
      rows.forEach((name, place) => name.classList.toggle("on", isOn && place === row));
      columns.forEach((name, place) => name.classList.toggle("on", isOn && place === column));
    };
    matrix.addEventListener("pointermove", (event) => {
      const box = matrix.getBoundingClientRect(), scale = matrix.viewBox.baseVal.width / box.width;
      const [x, y] = [(event.clientX - box.left) * scale - left, (event.clientY - box.top) * scale - top];
      mark(Math.floor(y / cell), Math.floor(x / cell));
    });
    matrix.addEventListener("pointerleave", () => mark(-1, -1));
  }

  // The chips put the curves of their key in color.
  for (const chip of all(".chip")) {
    chip.addEventListener("click", () => {
      const isOn = chip.getAttribute("aria-pressed") !== "true";
      chip.setAttribute("aria-pressed", String(isOn));
      for (const curve of ofKey(chip.dataset.key).filter((one) => one.matches(".curve"))) {
        curve.classList.toggle("shown", isOn);
        if (isOn) raise(curve);
      }
    });
  }

  // Names sort ascending first, numbers descending; missing values stay at the bottom.
  const compare = (one, other, sign) => {
    const [a, b] = [one, other].map((row) => row.value);
    if (a === "" || b === "") return (a === "") - (b === "");
    const [x, y] = [Number(a), Number(b)];
    return sign * (Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y);
  };
  for (const table of all("table.sortable")) {
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const first = head.classList.contains("name") ? "ascending" : "descending";
      const order = before === first ? (first === "ascending" ? "descending" : "ascending") : first;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const rows = [...table.tBodies[0].rows].map((row) => ({ row, value: row.cells[column].dataset.value ?? "" }));
      rows.sort((one, other) => compare(one, other, order === "ascending" ? 1 : -1));
      table.tBodies[0].append(...rows.map(({ row }) => row));
    }));
  }
})();
