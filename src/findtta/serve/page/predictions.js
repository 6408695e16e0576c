/** The predictions: how many are correct, and a card for each image. */

import { byId, inWords, make, methodName, plural, spoken } from "./dom.js";

const percent = (share) => (share === null ? "unknown" : `${Math.round(100 * share)}%`);

/** Draw the totals and the cards. */
export function showPredictions(result, images, remove) {
  const rows = result.images.map((row, index) => ({ ...row, ...truth(images[index], row, result.labels) }));
  const method = methodName(result.method);
  byId("totals").replaceChildren(...totals(rows, method));
  byId("cards").replaceChildren(...rows.map((row, index) => card(row, method, () => remove(images[index]))));
  showOnlyDifferent();
}

/** Hide the cards on which both agree, if that is wanted. */
export function showOnlyDifferent() {
  const only = byId("only-different").checked;
  const cards = [...byId("cards").children];
  for (const card of cards) card.hidden = only && !card.classList.contains("different");
  byId("none-different").hidden = cards.some((card) => !card.hidden);
}

/** Say in one sentence what came out. */
export function summary(result, images, severity) {
  const rows = result.images.map((row, index) => truth(images[index], row, result.labels));
  const kinds = new Set(result.images.map((image) => image.corruption));
  const [kind] = kinds;
  const what =
    kind === "none"
      ? "not corrupted"
      : `${kinds.size > 1 ? plural(kinds.size, "corruption") : inWords(kind)} at severity ${severity}`;
  const known = rows.filter((row) => row.known);
  const correct = known.length
    ? ` Correct: source ${known.filter((row) => row.sourceCorrect).length} of ${known.length}, ` +
      `${methodName(result.method)} ${known.filter((row) => row.findCorrect).length}.`
    : "";
  return `${plural(rows.length, "image")}, ${what}.${correct}`;
}

function truth(image, row, labels) {
  const known = image.label !== null && labels.includes(image.label);
  return {
    truth: image.label,
    known,
    sourceCorrect: known && row.source.label === image.label,
    findCorrect: known && row.find.label === image.label,
    different: row.source.label !== row.find.label,
  };
}

function totals(rows, method) {
  const known = rows.filter((row) => row.known);
  if (!known.length) {
    const different = rows.filter((row) => row.different).length;
    return [total("Different labels", `${different} of ${rows.length}`, different / rows.length, "plain")];
  }
  const count = (test) => known.filter(test).length;
  const source = count((row) => row.sourceCorrect);
  const find = count((row) => row.findCorrect);
  const gained = count((row) => row.findCorrect && !row.sourceCorrect);
  const lost = count((row) => row.sourceCorrect && !row.findCorrect);
  return [
    total("Source, correct", `${source} of ${known.length}`, source / known.length, "source"),
    total(`${method}, correct`, `${find} of ${known.length}`, find / known.length, "find"),
    total(`Changed by ${method}`, `${gained} gained, ${lost} lost`, null, "plain"),
  ];
}

function total(name, value, share, kind) {
  return make(
    "div",
    { class: `total ${kind}` },
    make("dt", {}, name),
    make("dd", {}, value, share === null ? null : bar(share)),
  );
}

const bar = (share) => make("span", { class: "bar", "aria-hidden": "true", "--share": share ?? 0 });

function card(row, method, remove) {
  const kind = inWords(row.corruption === "none" ? "not corrupted" : row.corruption);
  const drift = row.drift === null ? "" : ` · drift ${row.drift.toPrecision(2)}`;
  return make(
    "li",
    { class: row.different ? "prediction different" : "prediction" },
    make("img", { src: row.corrupted, alt: `${row.name}, ${kind}`, width: 96, height: 96 }),
    make("div", { class: "what" }, make("h3", { title: row.name }, row.name), make("p", {}, `${kind}${drift}`)),
    make(
      "div",
      { class: "verdicts" },
      verdict("Source", row.source, row.known, row.sourceCorrect, "source"),
      verdict(method, row.find, row.known, row.findCorrect, "find"),
      more(row, method),
    ),
    make(
      "button",
      { type: "button", class: "remove", "aria-label": `Remove ${row.name}`, title: "Remove", onclick: remove },
      "×",
    ),
  );
}

function verdict(who, prediction, known, correct, kind) {
  const mark = known
    ? make(
        "span",
        { class: correct ? "mark correct" : "mark wrong" },
        make("span", { "aria-hidden": "true" }, correct ? "✓" : "✗"),
        spoken(correct ? " correct" : " wrong"),
      )
    : null;
  return make(
    "div",
    { class: `verdict ${kind}` },
    make("span", { class: "who" }, who),
    make("span", { class: "label", title: prediction.label }, prediction.label),
    mark ?? make("span"),
    make("span", { class: "percent" }, percent(prediction.confidence)),
    bar(prediction.confidence),
  );
}

function more(row, method) {
  const list = (who, prediction) =>
    make(
      "div",
      {},
      make("h4", {}, who),
      make("ol", {}, ...prediction.top.map((entry) => make("li", {}, `${entry.label} ${percent(entry.confidence)}`))),
    );
  return make(
    "details",
    {},
    make("summary", {}, "more", spoken(` about ${row.name}`)),
    make("div", { class: "tops" }, list("Source", row.source), list(method, row.find)),
  );
}
