// Filters, sorting, and drawing when the page is opened, resized or printed.

function checked(name) {
  return new Set([...document.querySelectorAll(`input[name="${name}"]:checked`)].map((box) => Number(box.value)));
}

function chosen() {
  const [series, models, datasets, densities] = ["series", "model", "dataset", "density"].map(checked);
  return DATA.groups.map((g) => series.has(g.s) && models.has(place(g).m) && datasets.has(place(g).k) && densities.has(g.d));
}

function refresh() {
  const shown = chosen();
  const groups = DATA.groups.filter((_, k) => shown[k]);
  const series = checked("series");
  const densities = checked("density");
  const places = new Set(groups.map((g) => g.p));
  for (const row of document.querySelectorAll("tr[data-g]")) row.hidden = !shown[Number(row.dataset.g)];
  for (const cell of document.querySelectorAll("[data-s]:not(svg)")) cell.hidden = !series.has(Number(cell.dataset.s));
  for (const cell of document.querySelectorAll("table [data-d]")) cell.hidden = !densities.has(Number(cell.dataset.d));
  for (const row of document.querySelectorAll("tr[data-s][data-p]")) row.hidden = !series.has(Number(row.dataset.s)) || !places.has(Number(row.dataset.p));
  for (const box of document.querySelectorAll("div.overlap")) box.hidden = !places.has(Number(box.dataset.p)) || !densities.has(Number(box.dataset.d));
  document.getElementById("count").textContent = groups.length === DATA.groups.length ? "" : `${groups.length} of ${DATA.groups.length} cells shown.`;
  TIP.hidden = true;
  for (const host of document.querySelectorAll("[data-chart]")) fill(host, groups);
}

function fill(host, groups) {
  const panels = SECTIONS[host.dataset.chart](groups);
  host.replaceChildren();
  const made = panels.slice(0, MOST).map((spec) => chart(host, spec));
  made.forEach(paint); // when all are there, since their number decides on their width
  if (panels.length > MOST) html("p", `${panels.length - MOST} more panels: use the filters to see them.`, host);
  if (!panels.length) html("p", "Nothing to show with these filters.", host);
}

function setUp() {
  for (const svg of document.querySelectorAll("svg[data-mark]")) mark(svg, Number(svg.dataset.mark), 8, 8, 5);
  const costs = document.querySelector("[data-choice=cost]");
  Object.entries(DATA.costs).forEach(([name, label], k) => {
    const line = html("label", "", costs);
    const box = html("input", "", line);
    Object.assign(box, { type: "radio", name: "cost", value: name, checked: k === 0 });
    html("span", label, line);
    box.addEventListener("change", refresh);
  });
  costs.hidden = Object.keys(DATA.costs).length < 2;
  for (const host of document.querySelectorAll("[data-chart]")) host.closest("section").hidden = !SECTIONS[host.dataset.chart](DATA.groups).length;
  document.getElementById("filters").open = window.innerWidth > 560;
  const form = document.getElementById("filter-form");
  form.addEventListener("change", refresh);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("click", (event) => {
    const name = event.target.dataset.all || event.target.dataset.none;
    if (!name) return;
    for (const box of form.querySelectorAll(`input[name="${name}"]`)) box.checked = Boolean(event.target.dataset.all);
    refresh();
  });
  for (const button of document.querySelectorAll("thead button")) button.addEventListener("click", () => sort(button.parentNode));
}

function sort(head) {
  const column = [...head.parentNode.children].indexOf(head);
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const body = head.closest("table").tBodies[0];
  const value = (row) => {
    const cell = row.children[column];
    const text = cell.dataset.v ?? cell.textContent.trim();
    return text === "" || text === "–" ? null : Number.isNaN(Number(text)) ? text : Number(text);
  };
  const order = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === null || y === null) return (x === null) - (y === null); // unknown values last
    const sign = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return up ? sign : -sign;
  };
  body.append(...[...body.rows].sort(order));
}

setUp();
refresh();
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return; // a phone's address bar changes the height alone
  width = window.innerWidth;
  refresh();
});
window.addEventListener("beforeprint", refresh);
