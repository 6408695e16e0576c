/** The page at /: which images, corrupted how, and what to show of the result. */

import { Problem, ask, useKey } from "./api.js";
import { showAllCards, showCards, showPredictions, summary } from "./predictions.js";
import { byId, inWords, make, methodName } from "./dom.js";
import { showDomains } from "./domains.js";
import { forgetBatches, noteBatch, noteNormal, showDrift } from "./drift.js";
import { isReadable, largestFile, readFiles } from "./files.js";
import { showGroups, showLayer } from "./groups.js";
import { showOverview } from "./overview.js";

const PAUSE = 150; // milliseconds without a change before the server is asked
const POLL = 500; // milliseconds until the server is asked again for its overview
const FOLLOW = 5000; // milliseconds until it is asked again which method it serves

/** Every image: {name, data, label}, where the label is null unless it is a sample. None shows the overview's. */
let images = [];
let first = null; // the first batch of the overview
let severityOfFirst = 0;
let samples = [];
let limits = null; // of the server, as /v1/info and /v1/samples tell them
let haveLimits; // ends the wait of files that came before them
const loaded = new Promise((resolve) => {
  haveLimits = resolve;
});
let served = null; // the method that was last seen to be served, with its options, as text
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
    if (wanted !== images) return;
    show(result, wanted, severity);
    noteBatch(result, severity);
  } catch (problem) {
    explain(problem, soon);
  } finally {
    asking = false;
    if (changed) soon();
    showBusy();
  }
}

function show(result, shown, severity, remove = (image) => setImages(images.filter((other) => other !== image))) {
  byId("waiting").hidden = true;
  for (const id of ["predictions", "groups", "parts"]) byId(id).hidden = false;
  byId("status").textContent = summary(result, shown, severity);
  byId("few").hidden = result === first || shown.every((image) => image.label === null);
  byId("from-overview").hidden = result !== first;
  showPredictions(result, shown, remove);
  showGroups(result);
}

/** Without images of the visitor, the first batch of the overview is shown. */
function showNothing() {
  showBusy();
  if (first) {
    const shown = first.images.map(({ name, truth }) => ({ name, label: truth }));
    return show(first, shown, severityOfFirst, null);
  }
  byId("waiting").hidden = false;
  for (const id of ["predictions", "groups", "parts"]) byId(id).hidden = true;
  byId("status").textContent = "";
}

/** Ask now and then which method is served, and begin anew if it was switched. */
async function followMethod() {
  setTimeout(followMethod, FOLLOW);
  if (document.hidden) return;
  const about = await ask("v1/method").catch(() => null);
  if (!about) return;
  showDomains(about.stateful ? ((await ask("v1/domains").catch(() => null))?.domains ?? []) : []);
  const before = served;
  served = JSON.stringify(about);
  if (before === null || before === served) return;
  byId("method").textContent = methodName(about.method);
  first = null;
  forgetBatches(0);
  watchOverview();
  if (images.length) soon();
}

/** Show the overview as far as it is there, and ask again until it is complete. */
async function watchOverview() {
  try {
    const report = await ask("v1/overview");
    showOverview(report);
    noteNormal(report.drift);
    byId("waiting").textContent =
      report.status === "failed" ? "There are no samples to show. Choose images of your own." : "Classifying the first samples …";
    if (report.samples && !first) await loadFirst(report.severity);
    if (report.status === "computing" || (report.samples && !first)) setTimeout(watchOverview, POLL);
  } catch (problem) {
    explain(problem, watchOverview);
  }
}

async function loadFirst(severity) {
  try {
    first = await ask("v1/overview/batch");
  } catch (problem) {
    if (problem.passing) return; // it is asked for again
    throw problem;
  }
  severityOfFirst = severity;
  noteBatch(first, severity);
  if (!images.length) showNothing();
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
    if (kept.length) setImages([...kept, ...images]); // where they are seen at once
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
    watchOverview();
    if (served === null) followMethod();
  } catch (problem) {
    if (problem.status === 401) askForKey();
    else warn(problem.message, { retry: load });
  }
}

function prepare(offered, kinds) {
  samples = offered.samples.map((sample) => ({ ...sample, label: offered.labelled ? sample.label : null }));
  byId("samples-note").hidden = offered.labelled;
  byId("model").textContent = offered.model;
  byId("method").textContent = methodName(offered.method);
  byId("samples").replaceChildren(...samples.map(sampleButton));
  const select = byId("corruption");
  while (select.options.length > 1) select.remove(1);
  select.append(...kinds.corruptions.map((name) => make("option", { value: name }, inWords(name))));
  byId("use-all").textContent = `Use all ${samples.length}`;
  byId("use-all").disabled = !samples.length;
}

function sampleButton(sample, index) {
  const image = make("img", { src: sample.data, alt: sample.name, width: 32, height: 32 });
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
  // Corruptions are for the images of the visitor: the samples, if there are none.
  const corruptAnew = () => (images.length || !samples.length ? soon() : useSamples(samples));
  byId("severity").addEventListener("input", (event) => {
    byId("severity-value").textContent = event.target.value;
    corruptAnew();
  });
  byId("corruption").addEventListener("change", corruptAnew);
  byId("again").addEventListener("click", () => {
    seed += 1;
    corruptAnew();
  });
  byId("use-all").addEventListener("click", () => useSamples(samples));
  byId("remove-all").addEventListener("click", () => setImages([]));
  byId("only-different").addEventListener("change", showCards);
  byId("show-all").addEventListener("click", showAllCards);
  byId("layer").addEventListener("input", showLayer);
  byId("forget").addEventListener("click", () => forgetBatches());
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
