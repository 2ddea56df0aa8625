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

/** The status and the text of an answer. */
export async function send(path, { method, body, signal } = {}) {
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  try {
    const response = await fetch(path, { method: method ?? (body ? "POST" : "GET"), headers, body, signal });
    return { status: response.status, text: await response.text() };
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(0, "The service does not answer. Is it still running?");
  }
}

/** The answer to a request; ids of more than 15 digits come as text, with all their digits. */
export async function request(path, options) {
  const { status, text } = await send(path, options);
  let answer = null;
  try {
    answer = JSON.parse(text.replace(LARGE, (whole, string, before, digits) => string ?? `${before}"${digits}"`));
  } catch { /* reported below */ }
  if (status >= 200 && status < 300 && answer) return answer;
  throw new RequestError(status, answer?.detail ?? `The service answered with status ${status}.`);
}

/** A JSON list of ids as the log has them: on this page ids are text, integers only here. */
export const idList = (ids, integers) => `[${ids.map((id) => (integers && /^-?\d+$/.test(id) ? id : JSON.stringify(id))).join(",")}]`;
