/** Talking to the server; whatever goes wrong becomes a Problem whose message can be shown. */

const KEY = "findtta-api-key";

export class Problem extends Error {
  /**
   * @param {string} message Shown on the page.
   * @param {{status?: number, images?: {index: number, name: string, message: string}[]}} details
   */
  constructor(message, { status = 0, images = [] } = {}) {
    super(message);
    this.status = status;
    this.images = images;
  }

  /** Whether the same request may well succeed a little later. */
  get passing() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** Ask for JSON; with a body, which is a form or becomes JSON, it is a POST. */
export async function ask(path, body) {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (body && !(body instanceof FormData)) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body });
  } catch {
    throw new Problem("The server cannot be reached. Is it still running?");
  }
  const content = await response.json().catch(() => null);
  if (!response.ok) {
    const error = content?.error ?? {};
    const message = error.message ?? `The server responded with status ${response.status}.`;
    throw new Problem(message, { status: response.status, images: error.images });
  }
  if (content === null) throw new Problem("The response of the server is not JSON.", { status: response.status });
  return content;
}
