/** Building elements; text always goes in as text, so that no file name can become markup. */

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Make an HTML element: names that start with "on" are listeners, with "--" variables of its style. */
export const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** Make an SVG element in the same way. */
export const draw = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

/** Words that are seen by those who listen to the page only. */
export const spoken = (text) => make("span", { class: "hidden-text" }, text);

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

/** What people call a corruption. */
export const inWords = (name) => name.replaceAll("_", " ");

/** What people call a method. */
export const methodName = (name) => ({ source: "Source", find: "FIND", "find-star": "FIND*" })[name] ?? name;

/** The class that gives a method its colour. */
export const kindOf = (method, served) => (method === served ? "served" : method === "source" ? "source" : "other");
