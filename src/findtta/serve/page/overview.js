/** The overview: what each method makes of several hundred corrupted samples, as far as it is computed. */

import { byId, kindOf, make, methodName, plural } from "./dom.js";

const rounded = (value) => (Math.abs(value) < 0.05 ? "0.0" : value.toFixed(1));
const signed = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${rounded(Math.abs(value))}`;
const between = ({ low, high }, text = rounded) => (low === null ? "unknown" : `${text(low)} to ${text(high)}`);

/** Draw what the server has so far. */
export function showOverview(report) {
  const computing = report.status === "computing";
  byId("overview").hidden = false;
  byId("overview").setAttribute("aria-busy", computing);
  byId("overview-count").textContent = `${report.of} corrupted samples`;
  byId("progress").hidden = !computing;
  byId("progress-bar").max = report.of;
  byId("progress-bar").value = report.samples;
  byId("progress-text").textContent = `${report.samples} of ${report.of} classified so far`;
  byId("overview-text").textContent = sentence(report);
  byId("overview-note").textContent = about(report);
  const clean = report.methods.find(({ method }) => method === "source")?.clean;
  const cards = report.methods.filter(({ mixed }) => mixed).map((entry) => card(entry, report, clean));
  if (cards.length) cards.push(cleanCard(report, clean));
  byId("methods").replaceChildren(...cards);
}

function sentence(report) {
  if (report.status === "failed") return "The overview could not be computed; the log of the server says why.";
  const others = report.methods.filter(({ method }) => method !== "source");
  const main = others.find(({ method }) => method === report.method) ?? others[0];
  if (!main?.mixed) return "";
  const name = methodName(main.method);
  const { samples, agreement, correct, difference } = main.mixed;
  if (!report.labelled) {
    return `${name} and the source model agree on ${rounded(agreement)}% of ${samples} samples.`;
  }
  const source = report.methods.find(({ method }) => method === "source").mixed.correct;
  const clear = difference.low > 0 || difference.high < 0;
  const points = `${rounded(Math.abs(difference.mean))} percentage points ${difference.mean < 0 ? "fewer" : "more"}`;
  const interval = `95% interval ${between(difference, signed)}`;
  return (
    `${name} classifies ${correct} of ${samples} samples correctly, the source model ${source}: ` +
    (clear ? `${points} (${interval}).` : `no clear difference (${interval}).`)
  );
}

function about(report) {
  const what =
    `${plural(report.images, "image")} under each of 15 corruptions at severity ${report.severity}, ` +
    "mixed in every batch; no sample is left out.";
  const how =
    "Intervals are 95%, clustered by image; differences to the source model are paired by sample. " +
    "The line across each bar is the source model without corruption.";
  const unknown =
    "The model does not know the classes of these samples, so predictions are compared, not marked: give the server " +
    "images of its classes with --samples FOLDER.";
  return `${what} ${report.labelled ? how : unknown}`;
}

function card({ method, mixed }, report, clean) {
  const served = method === report.method ? make("span", { class: "tag" }, "served") : null;
  const isSource = method === "source";
  const lines = report.labelled
    ? [
        `${mixed.correct} of ${mixed.samples} correct`,
        `95% interval ${between(mixed.accuracy)}`,
        isSource ? null : `difference ${signed(mixed.difference.mean)} (${between(mixed.difference, signed)})`,
      ]
    : ["mean confidence", isSource ? null : `same label as the source model for ${rounded(mixed.agreement)}%`];
  const value = report.labelled ? mixed.accuracy : { mean: mixed.confidence };
  const mark = report.labelled ? clean.accuracy.mean : clean.confidence;
  return tile(kindOf(method, report.method), [methodName(method), " ", served], value, lines, mark);
}

function cleanCard(report, clean) {
  if (!report.labelled) {
    return tile("clean", ["Without corruption"], { mean: clean.confidence }, ["mean confidence, source model"]);
  }
  const others = report.methods
    .filter(({ method }) => method !== "source")
    .map((entry) => `${methodName(entry.method)} ${entry.clean.correct}`);
  const lines = [`${clean.correct} of ${clean.samples} correct, source model`, others.length ? others.join(", ") : null];
  return tile("clean", ["Without corruption"], { mean: clean.accuracy.mean }, lines);
}

function tile(kind, name, { mean, low = mean, high = mean }, lines, mark = null) {
  const scale = { class: "scale", "aria-hidden": "true", "--mean": mean, "--low": low ?? mean, "--high": high ?? mean };
  return make(
    "li",
    { class: `method ${kind}` },
    make("h3", {}, ...name),
    make("p", { class: "big" }, `${rounded(mean)}%`),
    make(
      "div",
      scale,
      make("span", { class: "fill" }),
      high > low ? make("span", { class: "whisker" }) : null,
      mark === null ? null : make("span", { class: "reference", "--at": mark }),
    ),
    ...lines.filter(Boolean).map((line) => make("p", {}, line)),
  );
}
