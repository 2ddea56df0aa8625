// Each head's list beside the consensus; what is one item is shown as one.

import { count, draw, make } from "./dom.js";

const STEPS = [[1, "s5"], [3, "s4"], [10, "s3"], [30, "s2"], [Infinity, "s1"]]; // places that a rank moved by, at most

export const letter = (place) => (place < 26 ? String.fromCharCode(65 + place) : String(place + 1));

/** Where someone who votes stands among all: heads, then fixed voters. */
const placeOf = (name, facts) => [...facts.heads, ...facts.fixed_voters].indexOf(name);
export const called = (item) => item.title ?? String(item.item);

/** By how many places a head's rank of an item moved over time: the standard deviation behind C (Eq. 11). */
export const moved = (c, facts) => (c > 0 && facts.consistency ? Math.abs(facts.consistency * Math.log(c)) : null);

function step(c, facts) {
  const places = moved(c, facts);
  return places === null ? "flat" : STEPS.find(([most]) => places <= most)[1];
}

export class Lists {
  /** looked(item id or null, whether it was chosen): the item that is pointed at */
  constructor(root, looked) {
    Object.assign(this, { root, looked, chosen: null, view: null });
    root.addEventListener("pointerover", (event) => this.#look(event.target.closest(".row")?.dataset.item ?? this.chosen));
    root.addEventListener("pointerleave", () => this.#look(this.chosen));
    root.addEventListener("focusin", (event) => this.#focused(event.target));
    root.addEventListener("click", (event) => this.choose(event.target.closest(".row")?.dataset.item ?? this.chosen));
    root.addEventListener("keydown", (event) => this.#move(event));
    new ResizeObserver(() => this.#link()).observe(root);
  }

  /** Empty places, before anything is known. */
  wait(k) {
    const row = () => make("li", {}, make("div", { class: "row" }, make("span", { class: "called" })));
    this.root.replaceChildren(...Array.from({ length: 7 }, (_, place) =>
      make("section", { class: `list wait ${place ? "" : "agreed"}`, "aria-hidden": "true" },
        make("header"), make("ol", {}, Array.from({ length: k }, row)))));
  }

  clear() {
    this.view = this.chosen = null;
    this.root.replaceChildren();
  }

  show(view, facts, colour) {
    Object.assign(this, { view, facts, colour });
    this.votes = new Map([...(view.consensus?.items ?? []), ...view.others].map((each) => [String(each.item), each.votes]));
    const lists = view.lists.map((list) => this.#head(list));
    if (view.consensus) lists.unshift(this.#agreed(view.consensus));
    this.links = draw("svg", { class: "links", "aria-hidden": "true" });
    this.root.classList.toggle("single", !view.consensus);
    this.root.replaceChildren(...lists, this.links);
    if (!this.#rows(this.chosen).length) this.chosen = null;
    this.last = undefined;
    this.#look(this.chosen);
  }

  choose(item) {
    this.chosen = item;
    this.#look(item, true);
  }

  #agreed(agreed) {
    const votes = agreed.items[0]?.votes ?? [];
    const letters = votes.map(({ head }) => make("span", { title: head }, letter(placeOf(head, this.facts))));
    const header = make("header", {}, make("h3", { id: "list-agreed" }, "Consensus"), agreed.by === "consensus" ? this.#figure(agreed.by, "", `${this.facts.metric} `) : make("p", {}, "by rank alone"),
      make("div", { class: "cells", "aria-hidden": "true" }, letters));
    return this.#list("agreed", header, agreed.items, (item) => [
      make("div", { class: "cells", "aria-hidden": "true" }, item.votes.map((vote) => this.#cell(vote))),
      make("span", { class: "score", title: "importance: the mean of the votes, or the re-ranker's score" }, item.score.toFixed(2)),
    ]);
  }

  #head(list) {
    const place = this.facts.heads.indexOf(list.by);
    const nonVoting = this.view.consensus && !this.facts.voters.includes(list.by);
    const about = [list.by === this.facts.best_head ? "best head" : "", nonVoting ? "does not vote" : ""].filter(Boolean).join(", ");
    const header = make("header", {},
      make("h3", { id: `list-${place}` },
        make("span", { class: `letter ${this.colour === "heads" && !nonVoting ? `h${place % 8}` : ""}` }, letter(place)),
        make("span", { class: "name", title: list.by }, list.by)),
      this.#figure(list.by, about));
    return this.#list(list.by, header, list.items, () => []);
  }

  #figure(by, about = "", metric = "") {
    const value = this.facts.validation[by];
    return make("p", { title: `${this.facts.metric} on validation` }, [value === undefined ? "" : metric + value.toFixed(3), about].filter(Boolean).join(" · "));
  }

  #list(by, header, items, more) {
    const rows = items.map((item, place) => make("li", {},
      make("button", { type: "button", class: "row", "data-item": item.item, tabindex: place ? -1 : 0, "aria-label": this.#said(item) },
        make("span", { class: "place" }, String(item.rank), item.held_out ? make("span", { class: "out", title: "held out, and found" }, "hit") : null), this.#tint(item, by),
        make("span", { class: "called", title: called(item) }, called(item)), more(item))));
    const empty = items.length ? [] : [make("li", { class: "muted small" }, "Nothing is left to show")];
    return make("section", { class: `list ${by === "agreed" ? by : ""}`, "aria-labelledby": header.firstChild.id, "data-by": by },
      header, make("ol", {}, rows, empty));
  }

  #said(item) {
    const votes = this.votes.get(String(item.item)) ?? [];
    const heads = votes.filter((vote) => vote.vote > 0).length;
    return [`${item.rank}: ${called(item)}`, item.held_out ? "held out" : "", votes.length ? `${count(heads, "vote")} of ${votes.length}` : ""]
      .filter(Boolean).join(", ");
  }

  #cell(vote) {
    return make("span", { class: this.#colour(vote) }, vote.vote > 0 ? String(vote.rank) : "·");
  }

  #colour(vote) {
    if (!(vote.vote > 0)) return "unsaid";
    return this.colour === "heads" ? `h${placeOf(vote.head, this.facts) % 8}` : step(vote.C, this.facts);
  }

  /** The stripe of an item: how steady this head is about it (the consensus: its voters), or which heads vote for it. */
  #tint(item, by) {
    const votes = this.votes.get(String(item.item)) ?? [];
    if (!votes.length) return null;
    const said = votes.filter((vote) => vote.vote > 0 && (by === "agreed" || vote.head === by));
    const steady = said.reduce((sum, vote) => sum + vote.C, 0) / said.length;
    const parts = this.colour === "heads"
      ? votes.map((vote) => make("i", { class: vote.vote > 0 ? this.#colour(vote) : "" }))
      : make("i", { class: said.length ? step(steady, this.facts) : "" });
    return make("span", { class: "tint", "aria-hidden": "true" }, parts);
  }

  #rows(item) {
    return item === null ? [] : [...this.root.querySelectorAll(".row")].filter((row) => row.dataset.item === item);
  }

  #look(item, chosen = item !== null && item === this.chosen) {
    if (`${item} ${chosen}` === this.last) return;
    this.last = `${item} ${chosen}`;
    const now = new Set(this.#rows(item));
    for (const row of this.root.querySelectorAll(".row")) row.classList.toggle("same", now.has(row));
    this.#link();
    this.looked(item, chosen);
  }

  /** Lines between the rows of the item that is looked at; dotted where they pass a list that does not have it. */
  #link() {
    if (!this.links) return;
    const rows = [...this.root.querySelectorAll(".same")], lists = [...this.root.querySelectorAll(".list")];
    const home = this.root.getBoundingClientRect();
    this.links.replaceChildren(...rows.slice(1).map((row, place) => {
      const from = rows[place].getBoundingClientRect(), to = row.getBoundingClientRect();
      const left = home.left - this.root.scrollLeft;
      const [x, y, X, Y] = [from.right - left, from.top + from.height / 2 - home.top, to.left - left, to.top + to.height / 2 - home.top];
      const next = lists.indexOf(row.closest(".list")) - lists.indexOf(rows[place].closest(".list")) === 1;
      const bend = next ? (X - x) * 0.6 : 24;
      return draw("path", { d: `M${x} ${y}C${x + bend} ${y} ${X - bend} ${Y} ${X} ${Y}`, class: next ? "" : "across" });
    }));
  }

  #focused(row) {
    if (!row.matches(".row")) return;
    for (const other of row.closest("ol").querySelectorAll(".row")) other.tabIndex = other === row ? 0 : -1;
    this.#look(row.dataset.item);
  }

  #move(event) {
    const row = event.target.closest(".row");
    if (!row) return;
    const mine = [...row.closest("ol").querySelectorAll(".row")], place = mine.indexOf(row);
    const lists = [...this.root.querySelectorAll(".list")], list = lists.indexOf(row.closest(".list"));
    const beside = (other) => {
      const rows = [...(lists[other]?.querySelectorAll(".row") ?? [])];
      return rows.find((each) => each.dataset.item === row.dataset.item) ?? rows[Math.min(place, rows.length - 1)];
    };
    const to = {
      ArrowDown: () => mine[place + 1], ArrowUp: () => mine[place - 1], Home: () => mine[0], End: () => mine.at(-1),
      ArrowRight: () => beside(list + 1), ArrowLeft: () => beside(list - 1),
    }[event.key];
    if (event.key === "Escape") this.choose(null);
    if (!to) return;
    event.preventDefault();
    to()?.focus();
  }
}

/** What the colours mean. */
export function legend(view, facts, colour) {
  if (!view.consensus) return [make("span", {}, "A run of one head: there is no consensus, and nobody votes.")];
  const swatch = (kind, text = "") => make("i", { class: kind }, text);
  const none = make("span", {}, swatch("unsaid"), facts.places ? `no vote: not in its first ${facts.places}` : "no vote");
  if (colour === "heads") {
    return [...facts.voters.map((head) => [head, placeOf(head, facts)]).map(([head, place]) =>
      make("span", {}, swatch(`h${place % 8}`, letter(place)), head)), none];
  }
  if (!facts.consistency || view.user === null) return [make("span", {}, swatch("flat"), "a vote, by rank alone"), none];
  const scale = [...STEPS].reverse().map(([most, kind]) => swatch(kind, most < Infinity ? `≤ ${most}` : "> 30"));
  return [make("span", { class: "scale" }, "a head's rank of the item moved over time by ±", scale, "places"), none];
}
