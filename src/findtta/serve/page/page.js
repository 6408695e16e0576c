/** The page at /: which images, corrupted how, and what to show of the result. */

import { Problem, ask, useKey } from "./api.js";
import { showOnlyDifferent, showPredictions, summary } from "./predictions.js";
import { byId, inWords, make, methodName, plural } from "./dom.js";
import { forgetBatches, noteBatch, showDrift } from "./drift.js";
import { isReadable, largestFile, readFiles } from "./files.js";
import { showGroups, showLayer } from "./groups.js";

const PAUSE = 150; // milliseconds without a change before the server is asked

/** Every image: {name, data, label}, where the label is null unless it is a sample. */
let images = [];
let samples = [];
let limits = null; // of the server, as /v1/info and /v1/samples tell them
let haveLimits; // ends the wait of files that came before them
const loaded = new Promise((resolve) => {
  haveLimits = resolve;
});
let seed = 0;
let timer = 0; // of the pause; 0 while none runs
let asking = false;
let reading = 0; // how many times files are being read
let changed = false; // since the server was asked

function setImages(next) {
  images = next;
  byId("remove-all").disabled = !images.length;
  for (const button of byId("samples").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", images.includes(samples[button.dataset.index]));
  }
  soon();
}

/** Ask the server when nothing has changed for a moment. */
function soon() {
  clearTimeout(timer);
  timer = setTimeout(compare, PAUSE);
  showBusy();
}

async function compare() {
  timer = 0;
  changed = asking;
  if (asking) return; // the newest state is asked for when the response is there
  const wanted = images;
  if (!wanted.length) return showNothing();
  const severity = Number(byId("severity").value);
  asking = true;
  showBusy();
  try {
    const result = await ask("v1/compare", {
      images: wanted.map(({ name, data }) => ({ name, data })),
      corruption: byId("corruption").value,
      severity,
      seed,
    });
    // Meanwhile images may have come or gone; a result that does not fit is not shown.
    if (wanted === images) show(result, wanted, severity);
  } catch (problem) {
    explain(problem, soon);
  } finally {
    asking = false;
    if (changed) soon();
    showBusy();
  }
}

function show(result, shown, severity) {
  byId("empty").hidden = true;
  for (const id of ["predictions", "groups", "parts"]) byId(id).hidden = false;
  const unknown = shown.some((image) => image.label !== null && !result.labels.includes(image.label));
  const note = byId("samples-note");
  note.hidden = !unknown;
  note.textContent = "This model does not know the classes of the samples, so nothing is marked correct or wrong.";
  byId("status").textContent = summary(result, shown, severity);
  showPredictions(result, shown, (image) => setImages(images.filter((other) => other !== image)));
  showGroups(result);
  noteBatch(result, severity);
}

function showNothing() {
  showBusy();
  byId("empty").hidden = false;
  for (const id of ["predictions", "groups", "parts"]) byId(id).hidden = true;
  byId("status").textContent = "";
}

function showBusy() {
  const busy = asking || reading > 0 || (timer !== 0 && images.length > 0);
  byId("busy").hidden = !busy;
  byId("results").setAttribute("aria-busy", busy);
}

/** Say what went wrong, and offer to try again if that can help. */
function explain(problem, again) {
  if (!(problem instanceof Problem)) throw problem;
  if (problem.status === 401) askForKey();
  else warn(problem.message, { retry: problem.passing ? again : null });
}

function warn(text, { retry = null } = {}) {
  byId("alert-text").textContent = text;
  byId("alert").hidden = false;
  byId("retry").hidden = !retry;
  byId("retry").onclick = () => {
    byId("alert").hidden = true;
    retry();
  };
}

function askForKey() {
  const wasThere = !byId("key").hidden;
  byId("key").hidden = false;
  byId("key-value").focus();
  if (wasThere) warn("The server does not accept this key.");
}

async function addFiles(files) {
  await loaded;
  byId("alert").hidden = true;
  const told = [];
  const fitting = [];
  const largest = largestFile(limits);
  for (const file of files) {
    if (file.size > largest) told.push(`${file.name}: larger than the ${mebibytes(largest)} that the server accepts.`);
    else if (!(await isReadable(file))) told.push(`${file.name}: the browser cannot read this file.`);
    else fitting.push(file);
  }
  reading += 1;
  showBusy();
  try {
    const wanted = fitting.slice(0, Math.max(0, limits.images - images.length));
    const { images: read, faults } = await readFiles(wanted, limits);
    told.push(...faults);
    const kept = fit(read);
    const left = fitting.length - faults.length - kept.length;
    if (left) told.push(`${mostImages()}; the last ${left} are left out.`);
    if (told.length) warn(told.join(" "));
    if (kept.length) setImages([...images, ...kept]);
  } catch (problem) {
    explain(problem, () => addFiles(files));
  } finally {
    reading -= 1;
    showBusy();
  }
}

/** The first of several images that fit into the batch. */
function fit(added) {
  const size = (some) => some.reduce((sum, { name, data }) => sum + data.length + 3 * name.length + 100, 1000);
  let count = Math.min(added.length, Math.max(0, limits.images - images.length));
  while (count > 0 && size([...images, ...added.slice(0, count)]) > limits.max_json_bytes) count -= 1;
  return added.slice(0, count);
}

const mebibytes = (bytes) => `${Number((bytes / 2 ** 20).toPrecision(2))} MiB`;

const mostImages = () => `At most ${limits.images} images (${mebibytes(limits.max_json_bytes)}) go into one batch`;

function useSamples(wanted) {
  const others = images.filter((image) => !wanted.includes(image));
  const room = limits.images - others.length;
  if (wanted.length > room) warn(`${mostImages()}.`);
  setImages([...others, ...wanted.slice(0, Math.max(0, room))]);
}

function toggleSample(sample) {
  if (images.includes(sample)) setImages(images.filter((image) => image !== sample));
  else useSamples([...images.filter((image) => samples.includes(image)), sample]);
}

async function load() {
  try {
    const [info, offered, kinds] = await Promise.all(["v1/info", "v1/samples", "v1/corruptions"].map((path) => ask(path)));
    byId("key").hidden = true;
    byId("alert").hidden = true;
    limits = { ...info.limits, ...offered.limits };
    haveLimits();
    prepare(offered, kinds);
  } catch (problem) {
    if (problem.status === 401) askForKey();
    else warn(problem.message, { retry: load });
  }
}

function prepare(offered, kinds) {
  samples = offered.samples;
  byId("model").textContent = offered.model;
  byId("method").textContent = methodName(offered.method);
  byId("samples").replaceChildren(...samples.map(sampleButton));
  const select = byId("corruption");
  while (select.options.length > 1) select.remove(1);
  select.append(...kinds.corruptions.map((name) => make("option", { value: name }, inWords(name))));
  byId("start").textContent = `Start with ${plural(samples.length, "sample")}`;
  byId("use-all").disabled = byId("start").disabled = !samples.length;
}

function sampleButton(sample, index) {
  const image = make("img", { src: sample.data, alt: sample.name, width: 33, height: 33 });
  const attributes = { type: "button", "aria-pressed": "false", "data-index": index, title: sample.name };
  return make("li", {}, make("button", { ...attributes, onclick: () => toggleSample(sample) }, image));
}

function listenToFiles() {
  const drop = byId("drop");
  byId("files").addEventListener("change", async (event) => {
    await addFiles([...event.target.files]);
    event.target.value = ""; // so that the same file can be chosen again
  });
  // Anywhere on the page, since a missed target would make the browser leave it.
  const dragsFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!dragsFiles(event)) return;
    event.preventDefault();
    drop.classList.add("over");
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) drop.classList.remove("over");
  });
  addEventListener("drop", (event) => {
    if (!dragsFiles(event)) return;
    event.preventDefault();
    drop.classList.remove("over");
    addFiles([...event.dataTransfer.files]);
  });
}

function listenToControls() {
  byId("severity").addEventListener("input", (event) => {
    byId("severity-value").textContent = event.target.value;
    soon();
  });
  byId("corruption").addEventListener("change", soon);
  byId("again").addEventListener("click", () => {
    seed += 1;
    soon();
  });
  for (const id of ["start", "use-all"]) byId(id).addEventListener("click", () => useSamples(samples));
  byId("remove-all").addEventListener("click", () => setImages([]));
  byId("only-different").addEventListener("change", showOnlyDifferent);
  byId("layer").addEventListener("input", showLayer);
  byId("forget").addEventListener("click", forgetBatches);
  byId("dismiss").addEventListener("click", () => {
    byId("alert").hidden = true;
  });
  byId("key").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(byId("key-value").value.trim());
    if (samples.length) {
      byId("key").hidden = true;
      soon();
    } else load();
  });
  addEventListener("resize", showDrift);
}

listenToFiles();
listenToControls();
byId("severity-value").textContent = byId("severity").value; // browsers keep sliders where they were
load();
