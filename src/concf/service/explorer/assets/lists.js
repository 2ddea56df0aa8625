// The consensus and each head's list; the same item is linked across lists.

import { count, draw, make } from "./dom.js";

const STEPS = [[1, "s5"], [3, "s4"], [10, "s3"], [30, "s2"], [Infinity, "s1"]]; // by how much a rank moved, at most

export const letter = (index) => (index < 26 ? String.fromCharCode(65 + index) : String(index + 1));

/** The index of a voter: heads first, then fixed voters. */
const indexOf = (name, facts) => [...facts.heads, ...facts.fixed_voters].indexOf(name);
export const titleOf = (item) => item.title ?? String(item.item);

/** The standard deviation of a head's rank of an item over time, from C (Eq. 11). */
export const deviation = (c, facts) => (c > 0 && facts.consistency_temperature ? Math.abs(facts.consistency_temperature * Math.log(c)) : null);

function step(c, facts) {
  const ranks = deviation(c, facts);
  return ranks === null ? "flat" : STEPS.find(([most]) => ranks <= most)[1];
}

export class Lists {
  /** highlighted(item id or null, whether it was chosen): the item pointed at */
  constructor(root, highlighted) {
    Object.assign(this, { root, highlighted, chosen: null, view: null });
    root.addEventListener("pointerover", (event) => this.#highlight(event.target.closest(".row")?.dataset.item ?? this.chosen));
    root.addEventListener("pointerleave", () => this.#highlight(this.chosen));
    root.addEventListener("focusin", (event) => this.#focused(event.target));
    root.addEventListener("click", (event) => this.choose(event.target.closest(".row")?.dataset.item ?? this.chosen));
    root.addEventListener("keydown", (event) => this.#move(event));
    new ResizeObserver(() => this.#link()).observe(root);
  }

  /** Empty rows while the first lists load. */
  wait(k) {
    const row = () => make("li", {}, make("div", { class: "row" }, make("span", { class: "title" })));
    this.root.replaceChildren(...Array.from({ length: 7 }, (_, index) =>
      make("section", { class: `list wait ${index ? "" : "agreed"}`, "aria-hidden": "true" },
        make("header"), make("ol", {}, Array.from({ length: k }, row)))));
  }

  clear() {
    this.view = this.chosen = null;
    this.root.replaceChildren();
  }

  show(view, facts, colour) {
    Object.assign(this, { view, facts, colour });
    this.votes = new Map([...(view.consensus?.items ?? []), ...view.other_items].map((each) => [String(each.item), each.votes]));
    const lists = view.lists.map((list) => this.#head(list));
    if (view.consensus) lists.unshift(this.#agreed(view.consensus));
    this.links = draw("svg", { class: "links", "aria-hidden": "true" });
    this.root.classList.toggle("single", !view.consensus);
    this.root.replaceChildren(...lists, this.links);
    if (!this.#rows(this.chosen).length) this.chosen = null;
    this.last = undefined;
    this.#highlight(this.chosen);
  }

  choose(item) {
    this.chosen = item;
    this.#highlight(item, true);
  }

  #agreed(agreed) {
    const votes = agreed.items[0]?.votes ?? [];
    const letters = votes.map(({ head }) => make("span", { title: head }, letter(indexOf(head, this.facts))));
    const header = make("header", {}, make("h3", { id: "list-agreed" }, "Consensus"), agreed.by === "consensus" ? this.#figure(agreed.by, "", `${this.facts.metric} `) : make("p", {}, "by rank alone"),
      make("div", { class: "cells", "aria-hidden": "true" }, letters));
    return this.#list("agreed", header, agreed.items, (item) => [
      make("div", { class: "cells", "aria-hidden": "true" }, item.votes.map((vote) => this.#cell(vote))),
      make("span", { class: "score", title: "importance (the mean of the votes) or the re-ranker's score" }, item.score.toFixed(2)),
    ]);
  }

  #head(list) {
    const index = this.facts.heads.indexOf(list.by), objective = this.facts.objectives[list.by];
    const nonVoting = this.view.consensus && !this.facts.voters.includes(list.by);
    const about = [list.by === this.facts.best_head ? "best head" : "", nonVoting ? "does not vote" : ""].filter(Boolean).join(", ");
    const header = make("header", {},
      make("h3", { id: `list-${index}` },
        make("span", { class: `letter ${this.colour === "heads" && !nonVoting ? `h${index % 8}` : ""}` }, letter(index)),
        make("span", { class: "name" }, list.by)),
      objective === list.by ? null : make("p", { class: "objective", title: objective }, objective),
      this.#figure(list.by, about));
    return this.#list(list.by, header, list.items, () => []);
  }

  #figure(by, about = "", metric = "") {
    const value = this.facts.validation[by];
    return make("p", { title: `${this.facts.metric} on validation` }, [value === undefined ? "" : metric + value.toFixed(3), about].filter(Boolean).join(" · "));
  }

  #list(by, header, items, more) {
    const rows = items.map((item, index) => make("li", {},
      make("button", { type: "button", class: "row", "data-item": item.item, tabindex: index ? -1 : 0, "aria-label": this.#label(item) },
        make("span", { class: "rank" }, String(item.rank), item.held_out ? make("span", { class: "out", title: "held out and recommended" }, "hit") : null), this.#tint(item, by),
        make("span", { class: "title", title: titleOf(item) }, titleOf(item)), more(item))));
    const empty = items.length ? [] : [make("li", { class: "muted small" }, "No items left")];
    return make("section", { class: `list ${by === "agreed" ? by : ""}`, "aria-labelledby": header.firstChild.id, "data-by": by },
      header, make("ol", {}, rows, empty));
  }

  #label(item) {
    const votes = this.votes.get(String(item.item)) ?? [];
    const heads = votes.filter((vote) => vote.vote > 0).length;
    return [`${item.rank}: ${titleOf(item)}`, item.held_out ? "held out" : "", votes.length ? `${count(heads, "vote")} of ${votes.length}` : ""]
      .filter(Boolean).join(", ");
  }

  #cell(vote) {
    return make("span", { class: this.#colour(vote) }, vote.vote > 0 ? String(vote.rank) : "·");
  }

  #colour(vote) {
    if (!(vote.vote > 0)) return "no-vote";
    return this.colour === "heads" ? `h${indexOf(vote.head, this.facts) % 8}` : step(vote.C, this.facts);
  }

  /** The stripe of an item: the consistency of this head (or of all voters), or which heads vote for it. */
  #tint(item, by) {
    const votes = this.votes.get(String(item.item)) ?? [];
    if (!votes.length) return null;
    const cast = votes.filter((vote) => vote.vote > 0 && (by === "agreed" || vote.head === by));
    const consistency = cast.reduce((sum, vote) => sum + vote.C, 0) / cast.length;
    const parts = this.colour === "heads"
      ? votes.map((vote) => make("i", { class: vote.vote > 0 ? this.#colour(vote) : "" }))
      : make("i", { class: cast.length ? step(consistency, this.facts) : "" });
    return make("span", { class: "tint", "aria-hidden": "true" }, parts);
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
    this.highlighted(item, chosen);
  }

  /** Lines between the rows of an item; dotted past a list without it. */
  #link() {
    if (!this.links) return;
    const rows = [...this.root.querySelectorAll(".same")], lists = [...this.root.querySelectorAll(".list")];
    const home = this.root.getBoundingClientRect();
    this.links.replaceChildren(...rows.slice(1).map((row, index) => {
      const from = rows[index].getBoundingClientRect(), to = row.getBoundingClientRect();
      const left = home.left - this.root.scrollLeft;
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
  if (colour === "heads") {
    return [...facts.voters.map((head) => [head, indexOf(head, facts)]).map(([head, index]) =>
      make("span", {}, swatch(`h${index % 8}`, letter(index)), head)), none];
  }
  if (!facts.consistency_temperature || view.user === null) return [make("span", {}, swatch("flat"), "a vote, by rank alone"), none];
  const scale = [...STEPS].reverse().map(([most, kind]) => swatch(kind, most < Infinity ? `≤ ${most}` : "> 30"));
  return [make("span", { class: "scale" }, "a head's rank of the item varied over time by ±", scale, "ranks"), none];
}
