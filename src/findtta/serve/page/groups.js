/** The groups the batch fell into: one layer as boxes of images, all layers as a table. */

import { byId, make, plural } from "./dom.js";

const COLOURS = 8;
const look = (number) => `g${(number - 1) % COLOURS}`;
const short = (name) => name.replace(/^net\./, "");

let shown = null; // the result on view, which moving the layer slider draws again

export function showGroups(result) {
  shown = result;
  const layers = result.layers.length;
  const any = result.layers.some((layer) => layer.groups > 0);
  byId("groups-view").hidden = !any;
  byId("no-groups").hidden = any;
  const slider = byId("layer");
  if (Number(slider.max) !== layers - 1) {
    slider.max = Math.max(0, layers - 1);
    slider.value = Math.floor(layers / 2);
  }
  byId("matrix").replaceChildren(...matrix(result));
  showLayer();
}

/** Draw the layer that the slider stands on. */
export function showLayer() {
  const slider = byId("layer");
  const index = Number(slider.value);
  const layer = shown?.layers[index];
  if (!layer) return;
  const count = layer.groups ? plural(layer.groups, "group") : "not split";
  const text = `${index + 1} of ${shown.layers.length}, ${short(layer.name)}: ${count}`;
  byId("layer-value").textContent = text;
  slider.setAttribute("aria-valuetext", text);
  byId("group-list").replaceChildren(...boxes(index, layer.groups));
  const rows = [...byId("matrix").querySelectorAll("tbody tr")];
  rows.forEach((row, at) => row.classList.toggle("current", at === index));
}

function boxes(layer, groups) {
  return Array.from({ length: groups }, (_, at) => {
    const members = shown.images.filter((image) => image.group[layer] === at + 1);
    return make(
      "li",
      { class: `group ${look(at + 1)}` },
      make("h3", {}, `Group ${at + 1} `, make("span", {}, `(${members.length})`)),
      make("div", {}, ...members.map((image) => thumbnail(image))),
    );
  });
}

const thumbnail = (image) =>
  make("img", {
    src: image.corrupted,
    alt: image.name,
    title: `${image.name}, ${image.corruption}`,
    width: 44,
    height: 44,
  });

function matrix(result) {
  const head = result.images.map((image, index) => make("th", { scope: "col", title: image.name }, `${index + 1}`));
  const rows = result.layers.map((layer, index) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, make("button", { type: "button", onclick: () => jumpTo(index) }, short(layer.name))),
      make("td", { class: "count" }, layer.groups || "–"),
      ...result.images.map((image) => cell(image.group[index])),
    ),
  );
  const titles = ["Layer", "Groups"].map((name) => make("th", { scope: "col" }, name));
  return [
    make("caption", { class: "hidden-text" }, "The number of the group of each image in each layer"),
    make("thead", {}, make("tr", {}, ...titles, ...head)),
    make("tbody", {}, ...rows),
  ];
}

const cell = (number) => make("td", { class: number ? look(number) : "" }, number ? `${number}` : "–");

function jumpTo(layer) {
  byId("layer").value = layer;
  showLayer();
}
