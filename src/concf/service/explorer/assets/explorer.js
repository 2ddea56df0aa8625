// The page. Its state is in the address, so that views can be shared and the back button works.

import { idList, keepToken, request, RequestError } from "./api.js";
import { combobox } from "./combobox.js";
import { at, count, make, term } from "./dom.js";
import { colours, legend, Lists, named, titleOf } from "./lists.js";
import { explain } from "./why.js";

const LENGTHS = [5, 10, 20, 50], PAUSE = 150, NOT_READY = 1500, CHIPS = 4, FEW = 5; // milliseconds; items of a history at first; similar ones
const START = { user: null, history: null, k: 10, colour: null, heldOut: false, where: "" };
const wide = matchMedia("(min-width: 52.01rem)");
const titles = new Map(); // of the items shown so far
let state = { ...START }, facts = null, view = null, pending = null, timer = 0, retry = begin, allChips = false, tokenSent = false;

const lists = new Lists(at("lists"), (item, chosen) => {
  const shown = view && item !== null && (wide.matches || chosen);
  at("why").hidden = !shown;
  document.body.classList.toggle("explained", Boolean(shown) && !wide.matches);
  if (!shown) return;
  explain(at("why"), item, view, facts, () => { lists.choose(null); at("lists").focus({ preventScroll: true }); }, similar);
  if (!wide.matches) document.activeElement.closest?.(".row")?.scrollIntoView({ block: "start" }); // the panel is below
});

function read(hash) {
  const parts = new Map(hash.slice(1).split("&").filter(Boolean).map((part) => [part.split("=", 1)[0], part.slice(part.indexOf("=") + 1)]));
  const ids = parts.has("history") ? parts.get("history").split(",").filter(Boolean).map(decoded) : null;
  return {
    user: parts.has("user") && !ids ? decoded(parts.get("user")) : null,
    history: ids && [...new Set(ids)],
    k: LENGTHS.includes(Number(parts.get("k"))) ? Number(parts.get("k")) : START.k,
    colour: ["consistency", "rank", "voters"].find((each) => each === parts.get("colour")) ?? START.colour,
    heldOut: parts.get("held-out") === "yes",
    where: decoded(parts.get("where") ?? ""),
  };
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function written({ user, history, k, colour, heldOut, where }) {
  const parts = [];
  if (history) parts.push(`history=${history.map(encodeURIComponent).join(",")}`);
  else if (user !== null) parts.push(`user=${encodeURIComponent(user)}`);
  if (k !== START.k) parts.push(`k=${k}`);
  if (colour !== START.colour) parts.push(`colour=${colour}`);
  if (heldOut) parts.push("held-out=yes");
  if (where) parts.push(`where=${encodeURIComponent(where)}`);
  return `#${parts.join("&")}`;
}

function go(change, how = "pushState") {
  state = { ...state, ...change };
  if (written(state) !== location.hash) history[how](null, "", written(state));
  refresh(change.history ? PAUSE : 0);
}

function refresh(pause = 0) {
  clearTimeout(timer);
  pending?.abort();
  showControls();
  if (!facts) return;
  at("lists").setAttribute("aria-busy", "true");
  timer = setTimeout(load, pause);
}

async function load() {
  const controller = (pending = new AbortController());
  retry = load;
  try {
    const result = await answer(state, controller.signal);
    if (controller.signal.aborted) return; // another request was made since
    view = result;
    for (const each of [...result.history, ...result.items]) remember(each);
    lists.show(result, facts, colour());
    const [first] = (result.consensus ?? result.lists[0]).items;
    if (wide.matches && lists.chosen === null && first) lists.choose(String(first.item));
    showError(null);
    showFilterError(null);
    showView();
  } catch (error) {
    if (error.name === "AbortError") return;
    if (state.where && [409, 422].includes(error.status)) { // the lists stay
      showFilterError(error);
      at("lists").setAttribute("aria-busy", "false");
      return;
    }
    view = null;
    lists.clear(...(error.status === 404 ? [empty("The log has no such user.", button("Try as a new user", () => { go({ history: [] }); at("item").focus(); }), "or", button("draw a random user", randomUser))] : []));
    at("why").hidden = true;
    showView();
    showError(error);
  }
  at("lists").setAttribute("aria-busy", "false");
}

function answer({ user, history, k, heldOut, where }, signal) {
  if (history) {
    return request("explore", { body: `{"history":${idList(history, facts.item_ids === "integers")},"k":${k},"where":${JSON.stringify(where || null)}}`, signal });
  }
  return request(`explore/${encodeURIComponent(user)}?k=${k}&held_out=${heldOut}${where ? `&where=${encodeURIComponent(where)}` : ""}`, { signal });
}

const colour = () => colours(view, facts).find((each) => each === state.colour) ?? colours(view, facts)[0];
const button = (text, onclick) => make("button", { type: "button", onclick }, text);
const empty = (...words) => make("p", { class: "empty" }, ...words);

/** The items nearest to one, in place of the button that asks for them. */
async function similar(id, place) {
  try {
    const { items, head } = await request(`similar/${encodeURIComponent(id)}?k=${FEW}`);
    place.replaceChildren(make("h4", {}, "Similar items ", make("span", { class: "muted" }, `by ${head}'s vectors`)),
      make("ul", {}, items.map((item) => make("li", {}, named(item), make("span", { class: "muted" }, ` ${item.score.toFixed(2)}`)))));
  } catch (error) { showError(error); }
}

async function randomUser() {
  retry = randomUser;
  try {
    const [user] = await request("users?random=true&limit=1");
    go({ user: String(user.id), history: null });
  } catch (error) { showError(error); }
}

const remember = (each) => { if (each.title) titles.set(String(each.item), each.title); };
const words = (text) => `q=${encodeURIComponent(text)}&limit=20`;

combobox(at("user"), at("user-options"), {
  search: async (text, signal) => (await request(`users?${words(text)}`, { signal }))
    .map(({ id, uses }) => ({ id: String(id), name: String(id), detail: count(uses, "item") })),
  choose: ({ id }) => go({ user: id, history: null }),
  failed: showError,
});

combobox(at("item"), at("item-options"), {
  search: async (text, signal) => {
    const items = await request(`items?${words(text)}`, { signal });
    items.forEach(({ id, title }) => remember({ item: id, title }));
    return items.map(({ id, title, uses }) => ({ id: String(id), name: title ? `${title} (${id})` : String(id), detail: count(uses, "user") }));
  },
  choose: ({ id }) => {
    at("item").value = "";
    go({ history: [...new Set([...(state.history ?? []), id])] });
  },
  failed: showError,
});

function showControls() {
  const own = state.history !== null;
  at("pick-user").hidden = own;
  at("pick-item").hidden = !own;
  at("held").hidden = own;
  at("edit").hidden = own;
  at("held-out").checked = state.heldOut;
  if (document.activeElement !== at("where")) at("where").value = state.where;
  for (const [name, value] of [["mode", own ? "history" : "user"], ["k", state.k], ...(facts ? [["colour", colour()]] : [])]) {
    document.querySelector(`input[name=${name}][value="${value}"]`).checked = true;
  }
  if (own) showHistory(state.history.map((item) => ({ item, title: titles.get(item), part: null })), true);
  else if (document.activeElement !== at("user") || state.user !== at("user").value) at("user").value = state.user ?? "";
}

function showView() {
  if (view || state.history === null) showHistory(view?.history ?? [], state.history !== null);
  const ignored = view?.unknown_items?.length ? `: ${view.unknown_items.join(", ")}` : "";
  at("note").textContent = (view?.note ?? "") + ignored;
  at("note").hidden = !view?.note;
  at("legend").replaceChildren(...(view ? legend(view, facts, colour()) : []));
  at("voters-title").hidden = !view?.consensus;
  at("colour").hidden = !facts?.has_consensus;
  for (const input of at("colour").querySelectorAll("input")) {
    input.parentNode.hidden = !colours(view, facts).includes(input.value);
    input.checked = input.value === colour();
  }
  if (view) at("status").textContent = `Lists of ${state.k} shown for ${state.history ? "your history" : `user ${state.user}`}.`;
  document.title = `${state.history ? "Custom history" : `User ${state.user ?? ""}`} · ConCF explorer`;
}

const GROUPS = [["training", "trained on"], ["validation", "validation"], ["test", "test"]];

function showHistory(used, own) {
  const named = (part, name) => (part !== "training" && facts.learned.includes(part) ? `${name}, trained on too` : name);
  const groups = own ? [["used", used, ""]] : GROUPS.map(([part, name]) => [facts ? named(part, name) : name, used.filter((item) => item.part === part), facts?.learned.includes(part) ? "" : `held-out ${part}`]);
  at("history-count").textContent = used.length ? count(used.length, "item") : "";
  at("history").replaceChildren(...groups.filter(([, items]) => items.length).flatMap(([name, items, kind]) => [
    make("dt", { class: own ? "hidden" : "" }, name), make("dd", {}, make("ul", { class: kind }, chips(items, own, () => showHistory(used, own))))]));
  if (own && !used.length) begun();
}

/** No items yet: what to do, and items to begin with. */
async function begun() {
  const place = make("dd", { class: "empty" }, "No items yet: these lists are for a user without a history. Add an item by words of its title or its id.");
  at("history").append(make("dt", { class: "hidden" }, "used"), place);
  const popular = await request("items?limit=3").catch(() => []);
  popular.forEach(({ id, title }) => remember({ item: id, title }));
  if (popular.length) place.append(" Much used: ", ...popular.map(({ id, title }) => make("button", { type: "button", class: "link", onclick: () => go({ history: [String(id)] }) }, title ?? String(id))));
}

function chips(items, own, redraw) {
  const shown = own || allChips ? items : items.slice(0, CHIPS);
  const result = shown.map((item) => make("li", {}, make("span", { title: item.title }, named(item)),
    own ? make("button", { type: "button", "aria-label": `Remove ${titleOf(item)}`, onclick: () => remove(String(item.item)) }, "✕") : null));
  if (shown.length === items.length) return result;
  return [...result, make("li", {}, make("button", { type: "button", onclick: () => { allChips = true; redraw(); } }, `all ${items.length}`))];
}

function remove(item) {
  const place = state.history.indexOf(item);
  go({ history: state.history.filter((each) => each !== item) });
  const left = at("history").querySelectorAll("button");
  (left[Math.min(place, left.length - 1)] ?? at("item")).focus();
}

function showFacts() {
  const figures = [[facts.users, "users"], [facts.items, "items"], [facts.interactions, "interactions"], [facts.heads.length, facts.heads.length === 1 ? "head" : "heads"]]
    .map(([value, name]) => make("div", {}, make("dt", {}, name), make("dd", {}, value.toLocaleString("en"))));
  figures.unshift(make("div", { class: "wide" }, make("dt", {}, "run"), make("dd", {}, facts.name)));
  const best = ["consensus", facts.best_head].filter((name) => facts.validation[name] !== undefined).map((name) => `${name} ${facts.validation[name].toFixed(3)}`);
  figures.push(make("div", { class: "wide" }, make("dt", {}, facts.metric, " on ", term("Validation part", "validation"), ...(facts.cross_fitted.length ? [", ", term("Cross-fitting", "cross-fitted")] : [])),
    make("dd", { title: `Best head: ${facts.why_best_head}` }, best.join(" · "))));
  at("filter").hidden = !facts.columns.length;
  at("columns").textContent = `Attributes: ${facts.columns.join(", ")}`;
  at("facts").replaceChildren(...figures);
}

function showFilterError(error) {
  at("filter-error").hidden = !error;
  at("filter-error").textContent = error ? `This filter cannot be applied, so the lists are as before. ${error.message}` : "";
  at("where").setAttribute("aria-invalid", String(Boolean(error)));
}

function showError(error) {
  if (error && !(error instanceof RequestError)) console.error(error); // a fault of this page
  const locked = error?.status === 401;
  if (locked && at("token").hidden) { at("token").hidden = false; at("token-text").focus(); }
  if (!error) at("token").hidden = true;
  at("token").querySelector("label").textContent = locked && tokenSent ? "That token is wrong. Type the service's token." : "This service requires a token.";
  at("message").hidden = !error || locked;
  if (error?.status === 503) setTimeout(retry, NOT_READY); // the run is being loaded
  at("message").querySelector("p").textContent = error?.message ?? "";
}

async function begin() {
  retry = begin;
  try {
    facts = await request("run");
    showFacts();
    if (state.user === null && state.history === null) {
      const [user] = await request("users?limit=1");
      state.user = user ? String(user.id) : null;
      history.replaceState(null, "", written(state));
    }
    refresh();
  } catch (error) { showError(error); }
}

at("random").addEventListener("click", randomUser);
at("retry").addEventListener("click", () => retry());
at("clear").addEventListener("click", () => { go({ history: [] }); at("item").focus(); });
at("edit").addEventListener("click", () => { go({ history: (view?.history ?? []).map((each) => String(each.item)) }); at("item").focus(); });
at("mode").addEventListener("change", (event) => {
  if (event.target.value === "history") go({ history: [] });
  else if (state.user !== null) go({ history: null });
  else randomUser();
});
at("length").addEventListener("change", (event) => go({ k: Number(event.target.value) }, "replaceState"));
at("held-out").addEventListener("change", (event) => go({ heldOut: event.target.checked }, "replaceState"));
at("colour").addEventListener("change", (event) => {
  state.colour = event.target.value;
  history.replaceState(null, "", written(state));
  if (view) { lists.show(view, facts, colour()); showView(); }
});
at("filter").addEventListener("submit", (event) => { event.preventDefault(); go({ where: at("where").value.trim() }); });
at("token").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(at("token-text").value.trim());
  tokenSent = true; // a wrong token is reported, a missing one is not
  at("token-text").value = "";
  retry();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address holds the state, not the position
  (at("lists").querySelector(".row") ?? at("lists")).focus();
});
addEventListener("popstate", () => {
  if (location.hash === written(state)) return;
  state = { ...state, ...read(location.hash) };
  allChips = false;
  refresh();
});

state = read(location.hash);
showControls();
lists.wait(state.k);
begin();
