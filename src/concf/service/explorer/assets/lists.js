// The consensus and each voter's list; the same item is marked in all of them.

import { at, count, draw, make, term } from "./dom.js";

const STEPS = [[1, "s5"], [3, "s4"], [10, "s3"], [30, "s2"], [Infinity, "s1"]]; // ranks, or by how much one moved, at most
const PARTS = { test: ["hit", "in the test part"], validation: ["val", "in the validation part"] };

export const letter = (index) => (index < 26 ? String.fromCharCode(65 + index) : String(index + 1));

/** The index of a list: voters first, so that the letters of the consensus leave none out; then heads that do not vote. */
export const indexOf = (name, facts) => [...new Set([...facts.voters, ...facts.heads, ...facts.fixed_voters])].indexOf(name);
export const titleOf = (item) => item.title ?? String(item.item);

/** A title with its own text direction, so that one from right to left does not reorder its neighbours. */
export const named = (item) => make("bdi", {}, titleOf(item));

/** The standard deviation of a head's rank of an item over time, from C (Eq. 11). */
export const deviation = (c, facts) => (c > 0 && facts.consistency_temperature ? Math.abs(facts.consistency_temperature * Math.log(c)) : null);

const step = (ranks) => STEPS.find(([most]) => ranks <= most)[1];

/** What cells can be coloured by: consistency only where there is some. */
export const colours = (view, facts) => [...(facts.consistency_temperature && view?.user !== null ? ["consistency"] : []), "rank", "voters"];

export class Lists {
  /** highlighted(item id or null, whether it was chosen): the item pointed at */
  constructor(root, highlighted) {
    Object.assign(this, { root, highlighted, chosen: null, view: null });
    root.addEventListener("pointerover", (event) => { const row = event.target.closest(".row"); if (row) this.#highlight(row.dataset.item); });
    at("voters").addEventListener("pointerleave", () => this.#highlight(this.chosen));
    root.addEventListener("focusin", (event) => this.#focused(event.target));
    root.addEventListener("click", (event) => { const row = event.target.closest(".row"); if (row) this.choose(row.dataset.item); });
    root.addEventListener("keydown", (event) => this.#move(event));
    new ResizeObserver(() => this.#link()).observe(root);
  }

  /** Empty rows while the first lists load. */
  wait(k) {
    const row = () => make("li", {}, make("div", { class: "row" }, make("span", { class: "title" })));
    const list = () => make("section", { class: "list wait", "aria-hidden": "true" }, make("header"), make("ol", {}, Array.from({ length: k }, row)));
    at("agreed").replaceChildren(list());
    at("voters").replaceChildren(...Array.from({ length: 5 }, list));
  }

  /** What there is instead of lists. */
  clear(...instead) {
    this.view = this.chosen = null;
    at("voters").replaceChildren();
    at("agreed").replaceChildren(...instead);
  }

  show(view, facts, colour) {
    Object.assign(this, { view, facts, colour });
    this.items = new Map(view.items.map((each) => [String(each.item), each]));
    const lists = view.lists.map((list) => this.#voter(list));
    at("agreed").replaceChildren(...(view.consensus ? [this.#agreed(view.consensus)] : []));
    this.links = draw("svg", { class: "links", "aria-hidden": "true" });
    this.root.classList.toggle("single", !view.consensus);
    at("voters").replaceChildren(...lists, this.links);
    if (!this.#rows(this.chosen).length) this.chosen = null;
    this.last = undefined;
    this.#highlight(this.chosen);
  }

  choose(item) {
    this.chosen = item;
    this.#highlight(item, true);
  }

  #agreed(agreed) {
    const cast = this.items.get(String(agreed.items[0]?.item))?.votes ?? [];
    const letters = cast.map(({ head }) => [letter(indexOf(head, this.facts)), head]);
    const header = make("header", {}, make("h3", { id: "list-agreed" }, "Consensus"), make("p", {}, ...this.#order(agreed)),
      letters.length ? make("p", {}, "Columns: the rank by ", letters.map(([sign, head], n) => [n ? ", " : "", make("b", {}, sign), ` ${head}`]).flat()) : null,
      make("div", { class: "cells", "aria-hidden": "true" }, letters.map(([sign, head]) => make("span", { title: head }, sign)), make("span", { class: "score" }, "score")));
    return this.#list("agreed", header, agreed.items, (item, known) => [
      make("div", { class: "cells", "aria-hidden": "true" }, known.votes.map((vote) => this.#cell(vote))),
      make("span", { class: "score", "aria-hidden": "true", title: this.facts.reranked.length ? "the re-ranker's score" : "importance: the mean of the votes" }, item.score.toFixed(2)),
    ]);
  }

  /** By what the consensus is ordered, and how good it is. */
  #order(agreed) {
    if (agreed.by !== "consensus") return ["by rank alone, ", term("Fold-in", "folded in")];
    return [this.facts.reranked.length ? ["ordered by the ", term("Re-ranker")] : ["ordered by the mean ", term("Vote")], ...this.#figure(agreed.by, " · ")].flat();
  }

  #voter(list) {
    const index = indexOf(list.by, this.facts), fixed = this.facts.fixed_voters.includes(list.by);
    const nonVoting = this.view.consensus && !this.facts.voters.includes(list.by);
    const kind = [fixed ? term("Fixed voter") : nonVoting ? "does not vote" : null, list.by === this.facts.best_head ? make("span", { title: this.facts.why_best_head }, "best head") : null].filter(Boolean);
    const figure = this.#figure(list.by, "");
    const header = make("header", {},
      make("h3", { id: `list-${index}` },
        make("span", { class: `letter ${this.colour === "voters" && !nonVoting ? `h${index % 8}` : ""}` }, letter(index)),
        make("span", { class: "name" }, list.by)),
      this.facts.about[list.by] ? make("p", { class: "about" }, this.facts.about[list.by]) : null,
      make("p", {}, ...[figure, ...kind.map((each) => [each])].filter((each) => each.length).flatMap((each, n) => (n ? [" · ", ...each] : each))));
    return this.#list(list.by, header, list.items, () => []);
  }

  #figure(by, before) {
    const value = this.facts.validation[by];
    if (value === undefined) return [];
    const words = `${before}${value.toFixed(3)}`;
    return this.facts.cross_fitted.includes(by) ? [`${words} `, term("Cross-fitting", "cross-fitted")] : [words];
  }

  #list(by, header, items, more) {
    const rows = items.map((item, index) => {
      const known = this.items.get(String(item.item)), out = PARTS[known.part];
      return make("li", {},
        make("button", { type: "button", class: "row", "data-item": item.item, tabindex: index ? -1 : 0 },
          make("span", { class: "rank" }, String(item.rank)), this.#tint(known, by),
          make("span", { class: "title", title: titleOf(known) }, named(known)),
          out ? make("span", { class: `out ${known.part}`, title: out[1] }, out[0]) : null, more(item, known), this.#label(known)));
    });
    const empty = items.length ? [] : [make("li", { class: "muted small" }, "No items are left: this user has used all that it ranks.")];
    return make("section", { class: `list ${by === "agreed" ? by : ""}`, "aria-labelledby": header.querySelector("h3").id, "data-by": by },
      header, make("ol", {}, rows, empty));
  }

  /** For readers who do not see the cells. */
  #label(known) {
    const heads = known.votes.filter((vote) => vote.vote > 0).length;
    return known.votes.length ? make("span", { class: "hidden" }, `, ${count(heads, "vote")} of ${known.votes.length}`) : null;
  }

  #cell(vote) {
    return make("span", { class: this.#colour(vote) }, vote.vote > 0 ? String(vote.rank) : "·");
  }

  #colour(vote) {
    if (!(vote.vote > 0)) return "no-vote";
    if (this.colour === "voters") return `h${indexOf(vote.head, this.facts) % 8}`;
    return step(this.colour === "rank" ? vote.rank : deviation(vote.C, this.facts) ?? Infinity);
  }

  /** The stripe of an item: the colour of this head's vote, or of all votes one below the other. */
  #tint(known, by) {
    const cast = known.votes.filter((vote) => by === "agreed" || vote.head === by || this.colour === "voters");
    if (!known.votes.length) return null;
    return make("span", { class: "tint", "aria-hidden": "true" }, cast.length ? cast.map((vote) => make("i", { class: this.#colour(vote) })) : make("i"));
  }

  #rows(item) {
    return item === null ? [] : [...this.root.querySelectorAll(".row")].filter((row) => row.dataset.item === item);
  }

  #highlight(item, chosen = item !== null && item === this.chosen) {
    if (`${item} ${chosen}` === this.last) return;
    this.last = `${item} ${chosen}`;
    const now = new Set(this.#rows(item));
    for (const row of this.root.querySelectorAll(".row")) row.classList.toggle("same", now.has(row));
    this.#link();
    this.highlighted(this.items?.has(item) ? item : null, chosen);
  }

  /** Lines between the rows of an item in the voters' lists; dotted past a list without it. */
  #link() {
    if (!this.links) return;
    const strip = at("voters"), rows = [...strip.querySelectorAll(".same")], lists = [...strip.querySelectorAll(".list")];
    const home = strip.getBoundingClientRect(), left = home.left - strip.scrollLeft;
    this.links.replaceChildren(...rows.slice(1).map((row, index) => {
      const from = rows[index].getBoundingClientRect(), to = row.getBoundingClientRect();
      const [x, y, X, Y] = [from.right - left, from.top + from.height / 2 - home.top, to.left - left, to.top + to.height / 2 - home.top];
      const next = lists.indexOf(row.closest(".list")) - lists.indexOf(rows[index].closest(".list")) === 1;
      const bend = next ? (X - x) * 0.6 : 24;
      return draw("path", { d: `M${x} ${y}C${x + bend} ${y} ${X - bend} ${Y} ${X} ${Y}`, class: next ? "" : "across" });
    }));
  }

  #focused(row) {
    if (!row.matches(".row")) return;
    for (const other of row.closest("ol").querySelectorAll(".row")) other.tabIndex = other === row ? 0 : -1;
    this.#highlight(row.dataset.item);
  }

  #move(event) {
    const row = event.target.closest(".row");
    if (!row) return;
    const rows = [...row.closest("ol").querySelectorAll(".row")], index = rows.indexOf(row);
    const lists = [...this.root.querySelectorAll(".list")], list = lists.indexOf(row.closest(".list"));
    const beside = (other) => {
      const rows = [...(lists[other]?.querySelectorAll(".row") ?? [])];
      return rows.find((each) => each.dataset.item === row.dataset.item) ?? rows[Math.min(index, rows.length - 1)];
    };
    const to = {
      ArrowDown: () => rows[index + 1], ArrowUp: () => rows[index - 1], Home: () => rows[0], End: () => rows.at(-1),
      ArrowRight: () => beside(list + 1), ArrowLeft: () => beside(list - 1),
    }[event.key];
    if (event.key === "Escape") this.choose(null);
    if (!to) return;
    event.preventDefault();
    to()?.focus();
  }
}

/** The meaning of the colours. */
export function legend(view, facts, colour) {
  if (!view.consensus) return [make("span", {}, "This run has one head and no consensus.")];
  const swatch = (kind, text = "") => make("i", { class: kind }, text);
  const none = make("span", {}, swatch("no-vote"), facts.top_k ? `no vote: not in its top ${facts.top_k}` : "no vote");
  if (colour === "voters") {
    return [...facts.voters.map((head) => [head, indexOf(head, facts)]).map(([head, index]) =>
      make("span", {}, swatch(`h${index % 8}`, letter(index)), head)), none];
  }
  const scale = [...STEPS].reverse().map(([most, kind]) => swatch(kind, most < Infinity ? (most === 1 && colour === "rank" ? "1" : `≤ ${most}`) : "> 30"));
  if (colour === "rank") return [make("span", { class: "scale" }, "a voter's rank of the item", scale), none];
  return [make("span", { class: "scale" }, term("Consistency"), ": a head's rank of the item varied over time by ±", scale, "ranks"), none];
}
