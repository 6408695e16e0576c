/** From the files that somebody drops to the pixels that the model gets: the server reads them, as for a prediction. */

import { ask } from "./api.js";

const AROUND = 1024; // bytes that a request has around each file, at most
const ENOUGH = 8 * 2 ** 20; // bytes of a request; a larger file is sent alone

/** The size of the largest file that the server accepts. */
export const largestFile = (limits) => Math.min(limits.image_max_bytes, limits.max_body_bytes - AROUND);

/** Whether a file can be read; a folder that was dropped cannot. */
export async function isReadable(file) {
  try {
    await file.slice(0, 1).arrayBuffer();
    return true;
  } catch {
    return false;
  }
}

/**
 * Send files, unchanged, in as many requests as the limits of the server make necessary.
 * Gives the images as the model gets them, and what is wrong with the files that are not images.
 */
export async function readFiles(files, limits) {
  const images = [];
  const faults = [];
  for (let part of split(files, limits)) {
    while (part.length) {
      try {
        const read = await ask("v1/preprocess", asForm(part));
        images.push(...read.images.map(({ data }, index) => ({ name: part[index].name, data, label: null })));
        break;
      } catch (problem) {
        if (!problem.images?.length) throw problem;
        const reasons = new Map(problem.images.map(({ index, message }) => [index, message.replace(/^image: /, "")]));
        faults.push(...[...reasons].map(([index, reason]) => `${part[index].name}: ${reason}`));
        part = part.filter((_, index) => !reasons.has(index));
      }
    }
  }
  return { images, faults };
}

function split(files, limits) {
  const most = Math.min(ENOUGH, limits.max_body_bytes);
  const parts = [];
  let room = 0;
  for (const file of files) {
    const size = file.size + AROUND;
    if (size > room || parts.at(-1).length === limits.max_images) {
      parts.push([]);
      room = most;
    }
    parts.at(-1).push(file);
    room -= size;
  }
  return parts;
}

function asForm(files) {
  const form = new FormData();
  // The bytes of a file decide what it is, not the type that the browser takes from its name.
  for (const file of files) form.append("file", file.slice(0, file.size, "application/octet-stream"), "image");
  return form;
}
