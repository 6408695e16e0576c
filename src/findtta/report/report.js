"use strict";

// Nothing here makes content: it sorts, filters, folds and explains what the page contains.
// Text from results only ever becomes the text of an element, never its markup.

const all = (selector, root = document) => [...root.querySelectorAll(selector)];

/* Dark mode: as the system has it, until the reader says otherwise. */

function storedTheme() {
  try {
    return localStorage.getItem("findtta-theme");
  } catch {
    return null; // storage may be forbidden for files
  }
}

function storeTheme(theme) {
  try {
    localStorage.setItem("findtta-theme", theme);
  } catch {
    // then the choice holds until the page is closed
  }
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setUpTheme() {
  const button = document.getElementById("theme");
  const label = () => (button.textContent = isDark() ? "Light mode" : "Dark mode");
  button.hidden = false;
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    storeTheme(document.documentElement.dataset.theme);
    label();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
  label();
}

/* Sorting */

function setUpSorting(table) {
  for (const head of all("th[data-column]", table)) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => sortBy(table, head));
  }
}

function sortBy(table, head) {
  const before = head.getAttribute("aria-sort");
  const opposite = { ascending: "descending", descending: "ascending" };
  const order = before === "none" ? head.dataset.first : opposite[before];
  for (const other of all("th[aria-sort]", table)) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const column = Number(head.dataset.column);
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => [keyOf(row.cells[column]), row]);
  keyed.sort(([a], [b]) => compareKeys(a, b, sign));
  body.append(...keyed.map(([, row]) => row));
}

function keyOf(cell) {
  if (cell.matches("th")) return cell.textContent;
  return "value" in cell.dataset ? Number(cell.dataset.value) : null;
}

function compareKeys(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null); // what is missing comes last either way
  if (typeof a === "number") return sign * (a - b);
  return sign * a.localeCompare(b, "en", { numeric: true });
}

/* Filters: everything that belongs to one method, stream, data or model says so in an attribute,
   so a style sheet hides it, however much there is. */

const hiddenWords = { method: new Set(), stream: new Set(), data: new Set(), model: new Set() };

function setUpFilters() {
  const form = document.getElementById("filters");
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", applyFilters);
  for (const filter of all(".filter", form)) {
    const boxes = all("input", filter);
    const tick = (value) => {
      for (const box of boxes) box.checked = value;
      applyFilters();
    };
    filter.querySelector(".all").addEventListener("click", () => tick(true));
    filter.querySelector(".none").addEventListener("click", () => tick(false));
    filter.addEventListener("toggle", () => {
      if (filter.open) for (const other of all(".filter[open]", form)) other.open = other === filter;
    });
  }
  document.getElementById("show-all").addEventListener("click", () => {
    for (const box of all("input", form)) box.checked = true;
    applyFilters();
  });
  document.addEventListener("click", (event) => {
    for (const filter of all(".filter[open]")) if (!filter.contains(event.target)) filter.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const open = event.key === "Escape" && document.querySelector(".filter[open]");
    if (open) {
      open.open = false;
      open.querySelector("summary").focus();
    }
  });
  document.head.append(Object.assign(document.createElement("style"), { id: "filter-style" }));
}

function applyFilters() {
  for (const filter of all(".filter")) {
    const boxes = all("input", filter);
    const off = boxes.filter((box) => !box.checked).map((box) => box.value);
    hiddenWords[filter.dataset.filter] = new Set(off);
    filter.classList.toggle("active", off.length > 0);
    const chosen = off.length ? `${boxes.length - off.length} of ${boxes.length}` : "all";
    filter.querySelector(".chosen").textContent = chosen;
  }
  const rules = Object.entries(hiddenWords).flatMap(([field, words]) =>
    [...words].map((word) => `main [data-${field}="${CSS.escape(word)}"] { display: none !important; }`),
  );
  document.getElementById("filter-style").textContent = rules.join("\n");
  countRuns();
  for (const setting of all(".setting")) hideIfEmpty(setting);
  const settings = all(".setting");
  const nothing = settings.length > 0 && settings.every((setting) => setting.hidden || isFiltered(setting));
  document.getElementById("nothing").hidden = !nothing;
  all("table").forEach(averageAgain);
  all(".chart.points").forEach(drawFrontier);
}

function isFiltered(element) {
  return Object.entries(hiddenWords).some(([field, words]) => words.has(element.dataset[field]));
}

function countRuns() {
  const runs = all("#run-list > .run");
  const shown = runs.filter((run) => !isFiltered(run)).length;
  const text = shown === runs.length ? `${shown} runs` : `${shown} of ${runs.length} runs`;
  document.getElementById("shown").textContent = text;
  document.getElementById("show-all").hidden = shown === runs.length;
}

function hideIfEmpty(setting) {
  const table = setting.querySelector("table");
  const rows = [...table.tBodies[0].rows].some((row) => !isFiltered(row));
  const columns = all("thead th[data-stream]", table).some((head) => !isFiltered(head));
  setting.hidden = !(rows && columns);
}

/* The mean is over the streams that are shown. */
function averageAgain(table) {
  if (!table.querySelector("thead .mean")) return;
  for (const row of table.tBodies[0].rows) {
    const shown = all("td[data-stream]", row).filter((cell) => !isFiltered(cell));
    const partial = shown.some((cell) => !("value" in cell.dataset) || "partial" in cell.dataset);
    const mean = row.querySelector(".mean");
    delete mean.dataset.value;
    mean.textContent = "–";
    if (shown.length && !partial) {
      const value = shown.reduce((sum, cell) => sum + Number(cell.dataset.value), 0) / shown.length;
      mean.dataset.value = value;
      mean.textContent = value.toFixed(Number(table.dataset.decimals));
    }
  }
}

/* Measures: one table at a time */

function setUpPanels(group) {
  const panels = all(":scope > .panel", group);
  const bar = document.createElement("div");
  bar.className = "tabs";
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "Measure");
  const show = (chosen) => {
    panels.forEach((panel) => (panel.hidden = panel !== chosen));
    [...bar.children].forEach((button, index) => button.setAttribute("aria-pressed", panels[index] === chosen));
  };
  for (const panel of panels) {
    const button = Object.assign(document.createElement("button"), { type: "button" });
    button.textContent = panel.dataset.title;
    button.addEventListener("click", () => show(panel));
    bar.append(button);
  }
  group.prepend(bar);
  show(panels[0]);
}

/* Legends */

function setUpLegend(legend) {
  const kind = legend.dataset.kind;
  const figures = legend.parentElement.querySelector(".figures");
  const series = (entry) =>
    all(".series", figures).filter((line) => line.dataset[kind] === entry.dataset[kind]);
  for (const entry of legend.children) {
    const button = entry.querySelector("button");
    const light = (on) => () => {
      figures.classList.toggle("dimmed", on && button.getAttribute("aria-pressed") === "true");
      for (const line of series(entry)) line.classList.toggle("lit", on);
    };
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", on);
      for (const line of series(entry)) line.classList.toggle("off", !on);
      light(on)();
    });
    button.addEventListener("pointerenter", light(true));
    button.addEventListener("pointerleave", light(false));
    button.addEventListener("focus", light(true));
    button.addEventListener("blur", light(false));
  }
}

/* What is under the pointer */

function showTooltip(x, y, title, lines) {
  const tooltip = document.getElementById("tooltip");
  const rows = lines.map(([color, name, value]) => {
    const row = document.createElement("span");
    const label = document.createElement("em");
    const dot = document.createElement("i");
    const number = document.createElement("em");
    dot.style.background = color;
    label.append(dot, name);
    number.textContent = value;
    row.append(label, number);
    return row;
  });
  const head = document.createElement("b");
  head.textContent = title;
  tooltip.replaceChildren(head, ...rows);
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, Math.min(y + 12, innerHeight - box.height - 4))}px`;
}

function hideTooltip() {
  document.getElementById("tooltip").hidden = true;
}

const axis = (chart, name) => {
  const [start, end, low, high] = chart.dataset[name].split(" ").map(Number);
  return (pixel) => low + ((pixel - start) / (end - start)) * (high - low);
};

function pointsOf(line) {
  const numbers = line.querySelector("path").getAttribute("d").match(/-?[\d.]+/g).map(Number);
  return numbers.flatMap((x, index) => (index % 2 ? [] : [[x, numbers[index + 1]]]));
}

function setUpLines(chart) {
  const names = chart.dataset.names ? JSON.parse(chart.dataset.names) : null;
  const [valueX, valueY] = [axis(chart, "x"), axis(chart, "y")];
  const hair = document.createElementNS(chart.namespaceURI, "path");
  hair.setAttribute("class", "crosshair");
  let series = null; // read when first needed: there may be many charts
  let place = null;

  const visible = () => {
    series ??= all(".series.line", chart).map((line) => ({ line, points: pointsOf(line) }));
    return series.filter(({ line, points }) => points.length && !line.matches(".off") && !isFiltered(line));
  };
  const columns = (shown) => [...new Set(shown.flatMap(({ points }) => points.map(([x]) => x)))].sort((a, b) => a - b);
  const explain = (x, clientX, clientY) => {
    place = x;
    const [bottom, top] = chart.dataset.y.split(" ");
    hair.setAttribute("d", `M${x} ${bottom}V${top}`);
    chart.append(hair);
    const lines = visible()
      .map(({ line, points }) => [line, points.find(([at]) => Math.abs(at - x) < 0.02)])
      .filter(([, point]) => point)
      .sort(([, a], [, b]) => a[1] - b[1])
      .map(([line, point]) => [line.dataset.color, line.dataset.name, valueY(point[1]).toFixed(1)]);
    const value = Math.round(valueX(x));
    showTooltip(clientX, clientY, names ? `${value}: ${names[value - 1] ?? ""}` : `batch ${value}`, lines);
  };
  const leave = () => {
    hair.remove();
    hideTooltip();
  };

  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) * chart.viewBox.baseVal.width) / box.width;
    const all = columns(visible());
    if (!all.length) return;
    const nearest = all.reduce((best, at) => (Math.abs(at - x) < Math.abs(best - x) ? at : best));
    explain(nearest, event.clientX, event.clientY);
  });
  chart.addEventListener("pointerleave", leave);
  chart.addEventListener("blur", leave);
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const all = columns(visible());
    if (!step || !all.length) return;
    event.preventDefault();
    const index = place === null ? (step > 0 ? 0 : all.length - 1) : all.indexOf(place) + step;
    const x = all[Math.max(0, Math.min(index, all.length - 1))];
    const box = chart.getBoundingClientRect();
    explain(x, box.left + (x * box.width) / chart.viewBox.baseVal.width, box.top + box.height / 3);
  });
  chart.setAttribute("tabindex", "0");
}

function setUpPoints(chart) {
  for (const point of all(".point", chart)) {
    const title = point.querySelector("title");
    const tip = title.textContent;
    title.remove(); // or the browser would show it, too
    point.setAttribute("aria-label", tip);
    point.setAttribute("tabindex", "0");
    point.setAttribute("role", "img");
    const explain = () => {
      const box = point.querySelector("use").getBoundingClientRect();
      showTooltip(box.right, box.bottom, tip, []);
    };
    point.addEventListener("pointerenter", explain);
    point.addEventListener("focus", explain);
    point.addEventListener("pointerleave", hideTooltip);
    point.addEventListener("blur", hideTooltip);
  }
}

/* The frontier joins the methods that are shown. */
function drawFrontier(chart) {
  const shown = all(".point", chart).filter((point) => !isFiltered(point));
  const places = shown.map((point) => {
    const mark = point.querySelector("use");
    return [Number(mark.getAttribute("x")), Number(mark.getAttribute("y")), point];
  });
  places.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let best = Infinity;
  const edge = places.filter(([, y]) => y < best && ((best = y), true));
  const path = edge.map(([x, y], index) => (index ? `H${x}V${y}` : `M${x} ${y}`)).join("");
  chart.querySelector(".frontier path")?.setAttribute("d", path);
  for (const [, , point] of places) point.classList.remove("on-frontier");
  for (const [, , point] of edge) point.classList.add("on-frontier");
}

/* A link to a run opens it. */
function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.matches("details")) target.open = true;
}

const theme = storedTheme();
if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;

document.addEventListener("DOMContentLoaded", () => {
  setUpTheme();
  all("table").forEach(setUpSorting);
  all(".panels").forEach(setUpPanels);
  all(".legend").forEach(setUpLegend);
  all(".chart.lines").forEach(setUpLines);
  all(".chart.points").forEach((chart) => {
    setUpPoints(chart);
    drawFrontier(chart);
  });
  if (document.getElementById("filters")) setUpFilters();
  addEventListener("hashchange", openTarget);
  openTarget();
});
