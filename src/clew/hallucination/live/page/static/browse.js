// The explorer over a trace store, and the finished comparisons.
import { at, complain, count, counted, element, labelChip, percent, read, riskBar, svg } from "./parts.js";

let store = null, page = 0, latest = 0;

export function startBrowsing(given) {
  store = given;
  for (const field of document.querySelectorAll('[data-needs="risk"]')) field.hidden = !store?.method;
  if (!store?.method) at("order").value = "number";
  at("search-form").addEventListener("submit", (event) => event.preventDefault());
  at("search-form").addEventListener("input", () => { page = 0; find(); });
  at("before").addEventListener("click", () => { page -= 1; find(); });
  at("after").addEventListener("click", () => { page += 1; find(); });
}

export function showAnswers() {
  at("search-form").hidden = !store;
  if (!store) {
    at("store-words").textContent = "Start the server with a trace store to browse its answers, and with its scores and a comparison to sort them by mistake.";
    return;
  }
  const labels = store.labeled ? `, ${count(store.labeled)} with a label` : ", none with a label";
  const risks = store.method ? ` The risk is that of ${store.method}, for answers that it was not fitted on.` : "";
  at("store-words").textContent = `${counted(store.answers, "answer")} in “${store.name}”${labels}.${risks}`;
  find();
}

async function find() {
  at("least-words").textContent = percent(Number(at("least-risk").value));
  at("most-words").textContent = percent(Number(at("most-risk").value));
  const query = new URLSearchParams({
    text: at("search").value, label: at("label").value, outcome: at("outcome").value, order: at("order").value,
    least_risk: at("least-risk").value, most_risk: at("most-risk").value, at: String(page),
  });
  const mine = (latest += 1);
  try {
    const found = await read(`clew/answers?${query}`);
    if (mine === latest) drawFound(found); // otherwise more was typed meanwhile
  } catch (error) {
    complain(error);
  }
}

function drawFound({ found, page: shown, pages, rows }) {
  at("found-words").textContent = found ? `${counted(found, "answer")} found.` : "No answer matches.";
  at("found").replaceChildren(...rows.map((row) => element("li", {}, element("a", { href: `#answers/${row.number}`, class: "row-link" },
    element("span", { class: "row-number quiet" }, String(row.number)),
    element("span", { class: "row-text" }, element("b", {}, row.question || "(no question)"), element("span", {}, row.answer || "(empty)")),
    labelChip(row.label), store.method ? riskBar(row.risk, store.threshold, row.reason) : null))));
  at("pager").hidden = pages < 2;
  at("page-words").textContent = `Page ${count(shown + 1)} of ${count(pages)}`;
  at("before").disabled = shown === 0;
  at("after").disabled = shown + 1 >= pages;
}

export async function showComparisons() {
  try {
    drawComparisons(await read("clew/comparisons"));
  } catch (error) {
    complain(error);
  }
}

function drawComparisons(all) {
  const empty = element("p", { class: "empty" }, "Start the server with the folder of a finished comparison to see its methods here.");
  at("comparisons-list").replaceChildren(...(all.length ? all.map(drawComparison) : [empty]));
}

function drawComparison(one) {
  const low = Math.min(0.5, ...one.methods.map((method) => method.interval?.[0] ?? method.auroc ?? 0.5));
  const head = ["Method", "Test AUROC", "", "Validation", "ECE", "F1"].map((name, place) => element("th", { scope: "col", class: place > 2 ? "number" : null }, name));
  const rows = one.methods.map((method) => element("tr", { class: method.name === one.best ? `best ${method.color}` : method.color },
    element("th", { scope: "row" }, element("i", { class: "swatch", "aria-hidden": "true" }), method.title, method.name === one.best ? element("span", { class: "best-mark" }, `best on ${one.chosen_on}`) : null),
    element("td", { class: "figures" }, element("b", {}, decimals(method.auroc)), method.interval ? element("small", {}, ` [${decimals(method.interval[0])}, ${decimals(method.interval[1])}]`) : null),
    element("td", { class: "interval" }, drawInterval(method, low)),
    element("td", { class: "number" }, decimals(method.validation)), element("td", { class: "number" }, decimals(method.ece)), element("td", { class: "number" }, decimals(method.f1))));
  const model = one.model ? ` · ${one.model}` : "";
  return element("article", { class: "card comparison" },
    element("div", { class: "comparison-head" }, element("div", {}, element("h2", {}, one.name),
      element("p", { class: "quiet" }, `${counted(one.answers, "test answer")}, ${count(one.hallucinated)} hallucinated${model}`)),
      one.has_report ? element("a", { href: one.report, class: "open", target: "_blank", rel: "noopener" }, "Open the report") : null),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Methods of ${one.name}` }, element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, rows))),
    element("p", { class: "quiet" }, "AUROC on the test split with its 95% bootstrap interval; the line is at 0.5, chance."));
}

const decimals = (value) => (value === null ? "–" : value.toFixed(3));

function drawInterval(method, low) {
  if (method.auroc === null) return "";
  const floor = Math.max(0, low - 0.02), x = (value) => (2 + ((value - floor) / (1 - floor)) * 196).toFixed(1);
  return svg("svg", { viewBox: "0 0 200 16", "aria-hidden": "true", class: "forest" },
    svg("line", { x1: x(0.5), x2: x(0.5), y1: 0, y2: 16, class: "chance" }),
    method.interval ? svg("line", { x1: x(method.interval[0]), x2: x(method.interval[1]), y1: 8, y2: 8, class: "span" }) : null,
    svg("circle", { cx: x(method.auroc), cy: 8, r: 4.2, class: "point" }));
}
