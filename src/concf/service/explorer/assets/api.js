// Questions to the service, and what it says when it refuses.

const KEY = "concf-token";
const LARGE = /("(?:[^"\\]|\\.)*")|([:,[\s])(-?\d{16,})(?=[,\]}\s])/g; // an integer that a double may not hold

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let token = stored((storage) => storage.getItem(KEY));

export function keepToken(given) {
  token = given;
  stored((storage) => storage.setItem(KEY, given));
}

/** Some browsers are told to store nothing, not even for a session. */
function stored(use) {
  try { return use(sessionStorage); } catch { return null; }
}

/** The answer to a question; ids of more than 15 digits come as text, with all their digits. */
export async function ask(path, { body, signal } = {}) {
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The service does not answer. Is it still running?");
  }
  const text = await response.text();
  let said = null;
  try {
    said = JSON.parse(text.replace(LARGE, (whole, string, before, digits) => string ?? `${before}"${digits}"`));
  } catch { /* said below */ }
  if (response.ok && said) return said;
  throw new Refused(response.status, said?.error?.message ?? `The service answered ${response.status}, without words.`);
}

/** A JSON list of ids as the log has them. Ids are text on this page; only here do they become integers again. */
export const idList = (ids, integers) => `[${ids.map((id) => (integers && /^-?\d+$/.test(id) ? id : JSON.stringify(id))).join(",")}]`;
