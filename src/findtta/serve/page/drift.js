/** The drift charts: per layer against earlier batches, and over time. */

import { byId, draw, inWords, make } from "./dom.js";

const KEPT = 40; // batches in the chart over time
const BEHIND = 6; // of them drawn behind the current one, layer by layer
const HEIGHT = 220;
const MARGIN = { top: 12, right: 12, bottom: 34, left: 46 };

let batches = [];
let counted = 0;
let normal = null; // {mean, layers}: between which values the drift of clean samples is

/** Take note of what is normal, and draw. */
export function noteNormal(drift) {
  normal = drift;
  showDrift();
}

/** Take note of a batch, and draw. */
export function noteBatch(result, severity) {
  const drifts = result.layers.map((layer) => layer.drift);
  const known = drifts.filter((value) => value !== null);
  if (!known.length) return;
  const kinds = new Set(result.images.map((image) => image.corruption));
  const kind = kinds.size > 1 ? "mixed" : [...kinds][0];
  const named = kind === "none" ? "not corrupted" : `${inWords(kind)}, severity ${severity}`;
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  counted += 1;
  const names = result.layers.map((layer) => layer.name);
  batches = [...batches, { number: counted, named, images: result.images.length, names, drifts, mean }].slice(-KEPT);
  showDrift();
}

/** Keep the last batch only, or as many as wanted. */
export function forgetBatches(kept = 1) {
  batches = batches.slice(batches.length - kept);
  showDrift();
}

export function showDrift() {
  byId("drift").hidden = !batches.length;
  if (!batches.length) return;
  byId("forget").disabled = batches.length < 2;
  byId("by-layer").replaceChildren(layerChart(byId("by-layer").clientWidth));
  byId("over-time").replaceChildren(timeChart(byId("over-time").clientWidth));
  byId("history").replaceChildren(...table());
}

function layerChart(width) {
  const now = batches.at(-1);
  const before = batches.slice(-1 - BEHIND, -1).filter((batch) => batch.drifts.length === now.drifts.length);
  const band = normal?.layers.length === now.drifts.length ? normal.layers : [];
  const positive = [...before.map((batch) => batch.drifts), now.drifts, ...band].flat().filter((value) => value > 0);
  const low = 10 ** Math.floor(Math.log10(Math.min(...positive, 1)));
  const high = Math.max(...positive, 10 * low) * 1.1;
  const y = scale(Math.log(low), Math.log(high), HEIGHT - MARGIN.bottom, MARGIN.top);
  const height = (value) => y(Math.log(Math.max(value, low)));
  const x = scale(1, Math.max(2, now.drifts.length), MARGIN.left, width - MARGIN.right);
  const path = (batch) =>
    batch.drifts
      .map((value, index) => [x(index + 1), value])
      .filter(([, value]) => value !== null)
      .map(([at, value], index) => `${index ? "L" : "M"}${at.toFixed(1)} ${height(value).toFixed(1)}`)
      .join("");
  const known = band.map(([low, high], index) => [x(index + 1), low, high]).filter(([, value]) => value !== null);
  const edge = (side) => known.map((point) => `${point[0].toFixed(1)} ${height(point[side]).toFixed(1)}`);
  const area = known.length ? draw("path", { class: "band", d: `M${[...edge(2), ...edge(1).reverse()].join("L")}Z` }) : null;
  const dots = now.drifts.map((value, index) =>
    value === null
      ? null
      : draw(
          "circle",
          { class: "dot", cx: x(index + 1), cy: height(value), r: 3.5 },
          draw("title", {}, `${now.names[index]}: ${value.toPrecision(3)}`),
        ),
  );
  const peak = now.drifts.reduce((best, value, index) => (value > (now.drifts[best] ?? -1) ? index : best), 0);
  const words =
    `Drift of ${now.drifts.length} layers, now ${now.named}: ` +
    `mean ${now.mean.toPrecision(2)}, most in ${now.names[peak]}.` +
    (normal ? ` Clean samples: mean ${normalMean()}.` : "");
  return chart(
    width,
    words,
    area,
    ...rows(logTicks(low, high), height, width),
    ...columns(wholeTicks(1, now.drifts.length, width), x),
    title("layer, first to last", width),
    ...before.map((batch) => draw("path", { class: "line before", d: path(batch) })),
    draw("path", { class: "line now", d: path(now) }),
    ...dots,
  );
}

const normalMean = () => normal.mean.map((value) => value?.toPrecision(2)).join(" to ");

function timeChart(width) {
  const band = normal?.mean.includes(null) ? null : normal?.mean;
  const top = Math.max(...batches.map((batch) => batch.mean), ...(band ?? [])) * 1.15 || 1;
  const y = scale(0, top, HEIGHT - MARGIN.bottom, MARGIN.top);
  const [first, last] = [batches[0].number, batches.at(-1).number];
  const x = scale(first, Math.max(first + 1, last), MARGIN.left + 8, width - MARGIN.right - 8);
  const point = (batch) => `${x(batch.number).toFixed(1)} ${y(batch.mean).toFixed(1)}`;
  const dots = batches.map((batch) =>
    draw(
      "circle",
      { class: "dot", cx: x(batch.number), cy: y(batch.mean), r: 4 },
      draw("title", {}, `batch ${batch.number} (${batch.named}): ${batch.mean.toPrecision(3)}`),
    ),
  );
  const [left, right] = [MARGIN.left, width - MARGIN.right];
  const area = band && draw("path", { class: "band", d: `M${left} ${y(band[0])}H${right}V${y(band[1])}H${left}Z` });
  const now = batches.at(-1);
  const words = `Mean drift of ${batches.length} batches, the last ${now.mean.toPrecision(2)} (${now.named}).`;
  return chart(
    width,
    words,
    area,
    ...rows(evenTicks(top), y, width),
    ...columns(wholeTicks(first, last, width), x),
    title("batch", width),
    draw("path", { class: "line now", d: `M${batches.map(point).join("L")}` }),
    ...dots,
  );
}

const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low)) * (to - from);

function chart(width, words, ...parts) {
  const size = { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT };
  return draw("svg", { ...size, role: "img", "aria-label": words }, ...parts);
}

const rows = (ticks, y, width) =>
  ticks.flatMap((tick) => [
    draw("path", { class: "grid", d: `M${MARGIN.left} ${y(tick)}H${width - MARGIN.right}` }),
    draw("text", { class: "tick end", x: MARGIN.left - 6, y: y(tick) + 4 }, `${Number(tick.toPrecision(3))}`),
  ]);

const columns = (ticks, x) =>
  ticks.map((tick) => draw("text", { class: "tick middle", x: x(tick), y: HEIGHT - MARGIN.bottom + 15 }, `${tick}`));

const title = (text, width) =>
  draw("text", { class: "tick middle", x: (MARGIN.left + width - MARGIN.right) / 2, y: HEIGHT - 4 }, text);

function logTicks(low, high) {
  const ticks = [];
  for (let power = low; power <= high; power *= 10) ticks.push(power, 3 * power);
  return ticks.filter((tick) => tick >= low && tick <= high);
}

function evenTicks(top) {
  const power = 10 ** Math.floor(Math.log10(top / 3));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => top / size <= 4.5);
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, index) => index * step);
}

/** Whole numbers from first to last, as many as there is room for. */
function wholeTicks(first, last, width) {
  const room = Math.max(2, Math.floor(width / 60));
  const step = Math.max(1, Math.ceil((last - first) / room));
  const ticks = [];
  for (let tick = first; tick <= last; tick += step) ticks.push(tick);
  return ticks;
}

function table() {
  const line = (batch) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, `${batch.number}`),
      make("td", {}, batch.named),
      make("td", {}, `${batch.images}`),
      make("td", {}, batch.mean.toPrecision(3)),
      make("td", {}, Math.max(...batch.drifts.filter((value) => value !== null)).toPrecision(3)),
    );
  const head = ["Batch", "Corruption", "Images", "Mean drift", "Most in a layer"];
  return [
    make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...batches.toReversed().map(line)),
  ];
}
