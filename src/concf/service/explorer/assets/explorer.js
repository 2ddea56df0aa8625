// The page: what is asked for stands in the address, so that it can be shared and gone back to.

import { ask, idList, keepToken, Refused } from "./api.js";
import { combobox } from "./combobox.js";
import { at, count, make } from "./dom.js";
import { called, legend, Lists } from "./lists.js";
import { explain } from "./votes.js";

const PLACES = [5, 10, 20, 50], PAUSE = 150, NOT_READY = 1500, CHIPS = 10; // milliseconds; items of a history at first
const START = { user: null, history: null, k: 10, colour: "consistency", heldOut: false };
const wide = matchMedia("(min-width: 52.01rem)");
const titles = new Map(); // of the items that were seen on the way
let state = { ...START }, facts = null, view = null, asked = null, timer = 0, again = begin, allChips = false, tried = false;

const lists = new Lists(at("lists"), (item, chosen) => {
  const shown = view && item !== null && (wide.matches || chosen);
  at("votes").hidden = !shown;
  if (shown) explain(at("votes"), item, view, facts, () => { lists.choose(null); at("lists").focus({ preventScroll: true }); });
});

// ---- the address

function read(hash) {
  const parts = new Map(hash.slice(1).split("&").filter(Boolean).map((part) => [part.split("=", 1)[0], part.slice(part.indexOf("=") + 1)]));
  const ids = parts.has("history") ? parts.get("history").split(",").filter(Boolean).map(decoded) : null;
  return {
    user: parts.has("user") && !ids ? decoded(parts.get("user")) : null,
    history: ids && [...new Set(ids)],
    k: PLACES.includes(Number(parts.get("k"))) ? Number(parts.get("k")) : START.k,
    colour: parts.get("colour") === "heads" ? "heads" : START.colour,
    heldOut: parts.get("held-out") === "yes",
  };
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function written({ user, history, k, colour, heldOut }) {
  const parts = [];
  if (history) parts.push(`history=${history.map(encodeURIComponent).join(",")}`);
  else if (user !== null) parts.push(`user=${encodeURIComponent(user)}`);
  if (k !== START.k) parts.push(`k=${k}`);
  if (colour !== START.colour) parts.push(`colour=${colour}`);
  if (heldOut) parts.push("held-out=yes");
  return `#${parts.join("&")}`;
}

function go(change, how = "pushState") {
  state = { ...state, ...change };
  if (written(state) !== location.hash) history[how](null, "", written(state));
  refresh(change.history ? PAUSE : 0);
}

// ---- asking

function refresh(pause = 0) {
  clearTimeout(timer);
  asked?.abort();
  showControls();
  if (!facts) return;
  at("lists").setAttribute("aria-busy", "true");
  timer = setTimeout(load, pause);
}

async function load() {
  const mine = (asked = new AbortController());
  again = load;
  try {
    const found = await answer(state, mine.signal);
    if (mine.signal.aborted) return; // somebody asked for something else since
    view = found;
    for (const each of [...found.history, ...found.lists.flatMap((list) => list.items)]) remember(each);
    lists.show(found, facts, state.colour);
    if (wide.matches && lists.chosen === null && found.consensus?.items.length) lists.choose(String(found.consensus.items[0].item));
    said(null);
    showView();
  } catch (error) {
    if (error.name === "AbortError") return;
    view = null;
    lists.clear();
    at("votes").hidden = true;
    showView();
    said(error);
  }
  at("lists").setAttribute("aria-busy", "false");
}

function answer({ user, history, k: places, heldOut }, signal) {
  const k = Math.min(places, facts.limits.k);
  if (history) {
    return ask("explore", { body: `{"history":${idList(history, facts.item_ids === "integers")},"k":${k}}`, signal });
  }
  return ask(`explore/${encodeURIComponent(user)}?k=${k}&held_out=${heldOut}`, { signal });
}

async function randomUser() {
  again = randomUser;
  try {
    const { users } = await ask("users?random=true&limit=1");
    go({ user: String(users[0].user), history: null });
  } catch (error) { said(error); }
}

const remember = (each) => { if (each.title) titles.set(String(each.item), each.title); };
const words = (text) => `q=${encodeURIComponent(text)}&limit=20`;

combobox(at("user"), at("user-options"), {
  search: async (text, signal) => (await ask(`users?${words(text)}`, { signal })).users
    .map(({ user, used }) => ({ id: String(user), name: String(user), detail: count(used, "item") })),
  choose: ({ id }) => go({ user: id, history: null }),
  failed: (error) => said(error),
});

combobox(at("item"), at("item-options"), {
  search: async (text, signal) => {
    const { items } = await ask(`items?${words(text)}`, { signal });
    items.forEach(remember);
    return items.map(({ item, title, users }) => ({ id: String(item), name: title ? `${title} (${item})` : String(item), detail: count(users, "user") }));
  },
  choose: ({ id }) => {
    at("item").value = "";
    go({ history: [...new Set([...(state.history ?? []), id])] });
  },
  failed: (error) => said(error),
});

// ---- showing

function showControls() {
  const own = state.history !== null;
  at("pick-user").hidden = own;
  at("pick-item").hidden = !own;
  at("held").hidden = own;
  at("edit").hidden = own;
  at("held-out").checked = state.heldOut;
  for (const [name, value] of [["mode", own ? "history" : "user"], ["k", state.k], ["colour", state.colour]]) {
    document.querySelector(`input[name=${name}][value="${value}"]`).checked = true;
  }
  if (own) showHistory(state.history.map((item) => ({ item, title: titles.get(item), held_out: false })), true);
  else if (document.activeElement !== at("user") || state.user !== at("user").value) at("user").value = state.user ?? "";
}

function showView() {
  if (view && state.history === null) showHistory(view.history, false);
  else if (view) showHistory(view.history, true);
  else if (state.history === null) showHistory([], false);
  const ignored = view?.unknown_items?.length ? `: ${view.unknown_items.join(", ")}` : "";
  at("note").textContent = (view?.note ?? "") + ignored;
  at("note").hidden = !view?.note;
  at("legend").replaceChildren(...(view ? legend(view, facts, state.colour) : []));
  if (view) at("status").textContent = `${state.k} places shown for ${state.history ? "your history" : `user ${state.user}`}.`;
  document.title = `${state.history ? "A history" : `User ${state.user ?? ""}`} · ConCF explorer`;
}

function showHistory(used, own) {
  const groups = own ? [["used", used]] : [["learned from", used.filter((item) => !item.held_out)], ["held out", used.filter((item) => item.held_out)]];
  at("history-count").textContent = used.length ? count(used.length, "item") : "";
  at("history").replaceChildren(...groups.filter(([, items]) => items.length).flatMap(([name, items]) => [
    make("dt", { class: own ? "hidden" : "" }, name), make("dd", {}, make("ul", { class: name === "held out" ? "kept-back" : "" }, chips(items, own, () => showHistory(used, own))))]));
  if (own && !used.length) at("history").append(make("dt", {}, "Nothing yet: these lists are for someone of whom nothing is known."));
}

function chips(items, own, redraw) {
  const shown = own || allChips ? items : items.slice(0, CHIPS);
  const found = shown.map((item) => make("li", {}, make("span", { title: item.title }, called(item)),
    own ? make("button", { type: "button", "aria-label": `Remove ${called(item)}`, onclick: () => remove(String(item.item)) }, "✕") : null));
  if (shown.length === items.length) return found;
  return [...found, make("li", {}, make("button", { type: "button", onclick: () => { allChips = true; redraw(); } }, `all ${items.length}`))];
}

function remove(item) {
  const place = state.history.indexOf(item);
  go({ history: state.history.filter((each) => each !== item) });
  const left = at("history").querySelectorAll("button");
  (left[Math.min(place, left.length - 1)] ?? at("item")).focus();
}

function showFacts() {
  const figures = [[facts.users, "users"], [facts.items, "items"], [facts.interactions, "pairs"], [facts.heads.length, "heads"]]
    .map(([value, name]) => make("div", {}, make("dt", {}, name), make("dd", {}, value.toLocaleString("en"))));
  figures.unshift(make("div", { class: "wide" }, make("dt", {}, "run"), make("dd", {}, facts.name)));
  const best = [["consensus", facts.validation.consensus], [facts.best_head, facts.validation[facts.best_head]]].filter(([, value]) => value !== undefined);
  figures.push(make("div", { class: "wide", title: "on validation" }, make("dt", {}, facts.metric),
    make("dd", {}, best.map(([name, value]) => `${name} ${value.toFixed(3)}`).join(" · "))));
  at("facts").replaceChildren(...figures);
}

function said(error) {
  if (error && !(error instanceof Refused)) console.error(error); // a mistake of this page
  const locked = error?.status === 401;
  if (locked && at("token").hidden) { at("token").hidden = false; at("token-text").focus(); }
  if (!error) at("token").hidden = true;
  at("message").hidden = !error || (locked && !tried);
  if (error?.status === 503) setTimeout(again, NOT_READY); // the run is being loaded
  at("message").querySelector("p").textContent = error?.message ?? "";
}

// ---- beginning

async function begin() {
  again = begin;
  try {
    facts = await ask("run");
    showFacts();
    if (state.user === null && state.history === null) {
      const { users } = await ask("users?limit=1");
      state.user = users.length ? String(users[0].user) : null;
      history.replaceState(null, "", written(state));
    }
    refresh();
  } catch (error) { said(error); }
}

at("random").addEventListener("click", randomUser);
at("retry").addEventListener("click", () => again());
at("clear").addEventListener("click", () => { go({ history: [] }); at("item").focus(); });
at("edit").addEventListener("click", () => { go({ history: (view?.history ?? []).map((each) => String(each.item)) }); at("item").focus(); });
at("mode").addEventListener("change", (event) => {
  if (event.target.value === "history") go({ history: [] });
  else if (state.user !== null) go({ history: null });
  else randomUser();
});
at("places").addEventListener("change", (event) => go({ k: Number(event.target.value) }, "replaceState"));
at("held-out").addEventListener("change", (event) => go({ heldOut: event.target.checked }, "replaceState"));
at("colour").addEventListener("change", (event) => {
  state.colour = event.target.value;
  history.replaceState(null, "", written(state));
  if (view) { lists.show(view, facts, state.colour); showView(); }
});
at("token").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(at("token-text").value.trim());
  tried = true; // a token that is refused is worth a word, the lack of one is not
  at("token-text").value = "";
  again();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says what is shown, not where
  (at("lists").querySelector(".row") ?? at("lists")).focus();
});
at("lists").addEventListener("scroll", () => { at("votes").scrollLeft = at("lists").scrollLeft; });
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
