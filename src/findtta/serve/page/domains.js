/** The domains that the served method has met in requests, as the replica remembers them. */

import { byId, make } from "./dom.js";

const HEADER = ["Domain", "Share", "Images", "Drift"];

/** Draw the table; without domains the section is not there. */
export function showDomains(domains) {
  byId("domains").hidden = !domains.length;
  const hasExamples = domains.some(({ examples }) => examples);
  const header = hasExamples ? [...HEADER, "Examples"] : HEADER;
  byId("domain-table").replaceChildren(
    make("thead", {}, make("tr", {}, ...header.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...domains.map((domain) => row(domain, hasExamples))),
  );
}

function row({ place, share, images, drift, examples = [] }, hasExamples) {
  const shown = examples.map((data, index) =>
    make("img", { src: data, alt: `Example ${index + 1} of domain ${place + 1}`, width: 48, height: 48 }),
  );
  return make(
    "tr",
    {},
    make("th", { scope: "row" }, String(place + 1)),
    make("td", {}, `${(100 * share).toFixed(1)}%`),
    make("td", {}, String(images)),
    make("td", {}, `${drift.toPrecision(2)} ×`),
    hasExamples ? make("td", {}, make("span", { class: "row" }, ...shown)) : null,
  );
}
