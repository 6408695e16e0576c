/** The predictions for one batch: how many are correct, and a card for each image. */

import { byId, inWords, kindOf, make, methodName, plural, spoken } from "./dom.js";

const SHOWN = 24; // cards, unless all are asked for

const percent = (share) => (share === null ? "unknown" : `${Math.round(100 * share)}%`);

let all = false; // whether all cards are shown

/** Draw the totals and the cards; images can be removed if there is a function for it. */
export function showPredictions(result, images, remove) {
  const rows = judged(result, images);
  byId("totals").replaceChildren(...totals(rows, result));
  byId("cards").replaceChildren(...rows.map((row, index) => card(row, result, remove && (() => remove(images[index])))));
  showCards();
}

/** Show the first cards, of all or of those on which methods differ. */
export function showCards() {
  const only = byId("only-different").checked;
  const cards = [...byId("cards").children];
  const wanted = cards.filter((card) => !only || card.classList.contains("different"));
  const shown = new Set(all ? wanted : wanted.slice(0, SHOWN));
  for (const card of cards) card.hidden = !shown.has(card);
  byId("none-different").hidden = wanted.length > 0;
  const left = wanted.length - shown.size;
  byId("show-all").hidden = !left;
  byId("show-all").textContent = `Show ${left} more`;
}

export function showAllCards() {
  all = true;
  showCards();
}

/** Say in one sentence what came out. */
export function summary(result, images, severity) {
  const kinds = new Set(result.images.map((image) => image.corruption));
  const [kind] = kinds;
  const what =
    kind === "none"
      ? "not corrupted"
      : `${kinds.size > 1 ? plural(kinds.size, "corruption") : inWords(kind)} at severity ${severity}`;
  const known = judged(result, images).filter((row) => row.known);
  const counts = result.methods.map((method) => `${methodName(method)} ${correct(known, method)}`);
  const correctly = known.length ? ` Correct of ${known.length}: ${counts.join(", ")}.` : "";
  return `${plural(images.length, "image")}, ${what}.${correctly}`;
}

function judged(result, images) {
  return result.images.map((row, index) => {
    const truth = images[index].label;
    const labels = result.methods.map((method) => row.predictions[method].label);
    return { ...row, truth, known: truth !== null, different: new Set(labels).size > 1 };
  });
}

const isCorrect = (row, method) => row.predictions[method].label === row.truth;
const correct = (known, method) => known.filter((row) => isCorrect(row, method)).length;

function totals(rows, result) {
  const known = rows.filter((row) => row.known);
  const different = rows.filter((row) => row.different).length;
  const counts = known.length ? result.methods : [];
  return [
    ...counts.map((method) => {
      const count = correct(known, method);
      const kind = kindOf(method, result.method);
      return total(`${methodName(method)}, correct`, `${count} of ${known.length}`, count / known.length, kind);
    }),
    total("Different labels", `${different} of ${rows.length}`, different / rows.length, "plain"),
  ];
}

function total(name, value, share, kind) {
  return make("div", { class: `total ${kind}` }, make("dt", {}, name), make("dd", {}, value, bar(share)));
}

const bar = (share) => make("span", { class: "bar", "aria-hidden": "true", "--share": share ?? 0 });

function card(row, result, remove) {
  const kind = inWords(row.corruption === "none" ? "not corrupted" : row.corruption);
  const drift = row.drift === null ? "" : ` · drift ${row.drift.toPrecision(2)}`;
  const close = { type: "button", class: "remove", "aria-label": `Remove ${row.name}`, title: "Remove", onclick: remove };
  return make(
    "li",
    { class: row.different ? "prediction different" : "prediction" },
    make("img", { src: row.corrupted, alt: `${row.name}, ${kind}`, width: 160, height: 160 }),
    make("div", { class: "what" }, make("h3", { title: row.name }, row.name), make("p", {}, `${kind}${drift}`)),
    make("div", { class: "verdicts" }, ...result.methods.map((method) => verdict(method, row, result)), more(row, result)),
    remove ? make("button", close, "×") : null,
  );
}

function verdict(method, row, result) {
  const prediction = row.predictions[method];
  const right = isCorrect(row, method);
  const mark = row.known
    ? make(
        "span",
        { class: right ? "mark correct" : "mark wrong" },
        make("span", { "aria-hidden": "true" }, right ? "✓" : "✗"),
        spoken(right ? " correct" : " wrong"),
      )
    : make("span");
  return make(
    "div",
    { class: `verdict ${kindOf(method, result.method)}` },
    make("span", { class: "who" }, methodName(method)),
    make("span", { class: "label", title: prediction.label }, prediction.label),
    mark,
    make("span", { class: "percent" }, percent(prediction.confidence)),
    bar(prediction.confidence),
  );
}

function more(row, result) {
  const list = (method) =>
    make(
      "div",
      {},
      make("h4", {}, methodName(method)),
      make(
        "ol",
        {},
        ...row.predictions[method].top.map((entry) => make("li", {}, `${entry.label} ${percent(entry.confidence)}`)),
      ),
    );
  return make(
    "details",
    {},
    make("summary", {}, "more", spoken(` about ${row.name}`)),
    make("div", { class: "tops" }, ...result.methods.map(list)),
  );
}
