// A readable form of the OpenAPI document.

import { request, send } from "./api.js";
import { at, make } from "./dom.js";

const DEEPEST = 6;
let document_ = null, known = {}; // the OpenAPI document; ids of this run

const resolved = (schema) => (schema?.$ref ? document_.components.schemas[schema.$ref.split("/").at(-1)] : schema) ?? {};

/** A schema as text, an object line by line. */
function describe(schema, depth = 0) {
  const one = resolved(schema), indent = "  ".repeat(depth + 1);
  const any = one.properties ? null : one.anyOf ?? one.oneOf;
  if (any) return [...new Set(any.map((each) => describe(each, depth)))].join(" | ");
  if (one.enum ?? one.const) return [one.enum ?? one.const].flat().map((each) => JSON.stringify(each)).join(" | ");
  if (one.type === "array") return `[${describe(one.items, depth)}, ...]`;
  if (one.properties && depth < DEEPEST) {
    const needed = new Set(one.required ?? []);
    const lines = Object.entries(one.properties).map(([name, each]) => `${indent}"${name}"${needed.has(name) ? "" : "?"}: ${describe(each, depth + 1)}${bounds(each)}`);
    return `{\n${lines.join(",\n")}\n${"  ".repeat(depth)}}`;
  }
  if (one.type === "object") return `{name: ${describe(one.additionalProperties === true ? {} : one.additionalProperties, depth)}, ...}`;
  return [one.type ?? "anything"].flat().join(" | ");
}

function bounds(schema) {
  const parts = [["minimum", "from"], ["maximum", "to"], ["maxLength", "characters: at most"], ["maxItems", "at most"]]
    .filter(([name]) => schema?.[name] !== undefined).map(([name, word]) => `${word} ${schema[name]}`);
  if (schema?.default !== undefined && schema.default !== null && schema.default !== "") parts.push(`default ${JSON.stringify(schema.default)}`);
  return parts.length ? ` (${parts.join(", ")})` : "";
}

/** An example of a schema: its required fields, with ids of this run. */
function sample(schema, name = "") {
  const one = resolved(schema), any = one.properties ? null : one.anyOf ?? one.oneOf;
  if (["user", "users"].includes(name) && one.type !== "array") return known.user ?? "USER";
  if (["item", "items", "history", "histories"].includes(name) && !["array", "object"].includes(one.type)) return known.item ?? "ITEM";
  if (any) return sample(any[0], name);
  if (one.type === "array") return [sample(one.items, name)];
  if (one.properties) return Object.fromEntries((one.required ?? one.oneOf?.[0].required ?? []).map((each) => [each, sample(one.properties[each], each)]));
  if (one.type === "object") return { someone: sample(one.additionalProperties, name) };
  return one.default ?? (one.type === "integer" ? one.minimum ?? 1 : one.type === "boolean" ? false : one.type === "string" ? "text" : null);
}

const bodyOf = (operation) => operation.requestBody?.content?.["application/json"]?.schema;
const value = (name) => encodeURIComponent(known[name] ?? name.toUpperCase());
const example = (path, { parameters = [] }) => path.slice(1).replace(/\{(\w+)\}/g, (_, name) => value(name)) +
  parameters.filter((each) => each.in === "query" && each.required).map(({ name }) => `?${name}=${value(name)}`).join("");

function curl(method, path, operation) {
  const open = !document_.components.securitySchemes;
  const words = [`curl ${method === "get" ? "" : `-X ${method.toUpperCase()} `}${location.href.replace(/docs[^/]*$/, "")}${example(path, operation)}`];
  if (!open) words.push(`-H "Authorization: Bearer $TOKEN"`);
  const body = bodyOf(operation);
  if (body) words.push(`-H 'Content-Type: application/json'`, `-d '${JSON.stringify(sample(body)).replaceAll("'", "'\\''")}'`);
  return words.join(" \\\n  ");
}

/** A form that sends the call, with the example filled in, and shows the answer. */
function attempt(method, path, operation) {
  const name = `${method} ${path}`, body = bodyOf(operation);
  const address = make("input", { "aria-label": `Address of ${name}`, value: example(path, operation), spellcheck: "false" });
  const text = body && make("textarea", { "aria-label": `Body of ${name}`, rows: 5, spellcheck: "false" }, JSON.stringify(sample(body), null, 2));
  const answer = make("pre", { tabindex: 0, hidden: "", role: "status", "aria-label": `Answer to ${name}` });
  const submit = async (event) => {
    event.preventDefault();
    answer.hidden = false;
    try {
      const { status, text: given } = await send(address.value, { method: method.toUpperCase(), body: text?.value });
      answer.textContent = `${status}\n${pretty(given)}`;
    } catch (error) { answer.textContent = error.message; }
  };
  return make("form", { class: "try", onsubmit: submit }, address, make("button", { type: "submit" }, "Send"), text ?? "", answer);
}

/** As it was sent where numbers are too large for this page to write again. */
function pretty(text) {
  try { return /(?<![\d.])\d{16}/.test(text) ? text : JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function shown(method, path, operation) {
  const parameters = (operation.parameters ?? []).map((each) => make("tr", {}, make("th", { scope: "row" }, make("code", {}, each.name)),
    make("td", {}, `${describe(each.schema)}${bounds(each.schema)}`), make("td", { class: "muted" }, each.schema.description ?? (each.in === "path" ? "in the path" : ""))));
  const body = bodyOf(operation);
  const [good] = Object.keys(operation.responses), errors = Object.entries(operation.responses).slice(1);
  const answer = operation.responses[good].content?.["application/json"]?.schema;
  return make("details", {},
    make("summary", {}, make("b", {}, method.toUpperCase()), make("code", {}, path), make("span", { class: "muted" }, operation.summary ?? "")),
    make("div", { class: "inside" }, operation.description ? make("p", {}, operation.description) : null,
      parameters.length ? [make("h3", {}, "Parameters"), make("table", {}, make("tbody", {}, parameters))] : [],
      body ? [make("h3", {}, "Body"), make("pre", { tabindex: 0 }, describe(body))] : [],
      make("h3", {}, "Try it"), attempt(method, path, operation), make("pre", { tabindex: 0 }, curl(method, path, operation)),
      answer ? [make("h3", {}, `Answer (${good})`), make("pre", { tabindex: 0 }, describe(answer))] : [],
      errors.length ? [make("h3", {}, "Errors"), make("table", {}, make("tbody", {}, errors.map(([code, each]) =>
        make("tr", {}, make("th", { scope: "row" }, code), make("td", {}, each.description)))))] : []));
}

async function ids() {
  try {
    const [[user], [item]] = await Promise.all([request("users?limit=1"), request("items?limit=1")]);
    known = { user: user?.id, item: item?.id };
  } catch { /* the examples have USER and ITEM instead */ }
}

try {
  [document_] = await Promise.all([request("openapi.json"), ids()]);
  at("about").textContent = `${document_.info.version} · ${document_.info.summary ?? document_.info.description ?? ""}`;
  const routes = Object.entries(document_.paths).flatMap(([path, operations]) => Object.entries(operations).map(([method, operation]) => shown(method, path, operation)));
  at("operations").replaceChildren(make("section", {}, make("h2", {}, "Routes"), routes));
} catch (error) {
  at("message").hidden = false;
  at("message").querySelector("p").textContent = error.message;
}
