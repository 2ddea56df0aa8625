// Requests to the service, and its errors.

const KEY = "concf-token";
const LARGE = /("(?:[^"\\]|\\.)*")|([:,[\s])(-?\d{16,})(?=[,\]}\s])/g; // an integer that a double may not hold

export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let token = stored((storage) => storage.getItem(KEY));

export function keepToken(value) {
  token = value;
  stored((storage) => storage.setItem(KEY, value));
}

/** Some browsers allow no storage, not even for a session. */
function stored(use) {
  try { return use(sessionStorage); } catch { return null; }
}

/** The answer to a request; ids of more than 15 digits come as text, with all their digits. */
export async function request(path, { body, signal } = {}) {
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(0, "The service does not answer. Is it still running?");
  }
  const text = await response.text();
  let answer = null;
  try {
    answer = JSON.parse(text.replace(LARGE, (whole, string, before, digits) => string ?? `${before}"${digits}"`));
  } catch { /* reported below */ }
  if (response.ok && answer) return answer;
  throw new RequestError(response.status, answer?.detail ?? `The service answered with status ${response.status}.`);
}

/** A JSON list of ids as the log has them: on this page ids are text, integers only here. */
export const idList = (ids, integers) => `[${ids.map((id) => (integers && /^-?\d+$/.test(id) ? id : JSON.stringify(id))).join(",")}]`;
