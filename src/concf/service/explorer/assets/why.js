// The panel of an item: which items of the history speak for it, what lifted it, and how the voters voted.

import { count, draw, make, term } from "./dom.js";
import { deviation, letter, indexOf, named, titleOf } from "./lists.js";

const KINDS = { score: ["Item z-score", "scores above everyone's"], similarity: ["Item-history similarity", "similarity to the history"], popularity: [null, "the item's popularity"], trend: [null, "the item's trend and age"], newest: [null, "similarity to the newest items"] };
const figure = (value) => value.toFixed(value > 0 && value < 0.01 ? 3 : 2);
const signed = (value) => `${value < -0.005 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;

/** Fill the panel with an item of a view. similar(panel): loads similar items on demand */
export function explain(panel, id, view, facts, close, similar) {
  const item = view.items.find((each) => String(each.item) === id);
  const ranks = new Map([view.consensus, ...view.lists].filter(Boolean).map((list) => [list.by, list.items.find((each) => String(each.item) === id)]));
  panel.replaceChildren(
    make("button", { type: "button", class: "close", "aria-label": "Close", onclick: close }, "✕"),
    make("h3", {}, named(item)), item.title ? make("p", { class: "muted" }, id) : "",
    described(item), make("p", {}, place(item, ranks, view)), because(item, view),
    ...(item.contributions ? lifted(item, view, facts) : []),
    ...votes(item, ranks, view, facts),
    make("div", { class: "similar" }, make("button", { type: "button", class: "link", onclick: (event) => similar(id, event.currentTarget.parentNode) }, "Similar items")));
}

/** The item's attributes in the catalogue. */
function described(item) {
  const rows = Object.entries(item.attributes);
  return rows.length ? make("dl", { class: "attributes" }, rows.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))) : "";
}

function place(item, ranks, view) {
  const agreed = view.consensus && ranks.get(view.consensus.by);
  const rank = !view.consensus ? [] : agreed ? [`Rank ${agreed.rank} in the consensus.`] : [`Not in the top ${view.consensus.items.length} of the consensus.`];
  const parts = { test: " A hit: this user has it in the ", validation: " This user has it in the " };
  return [...rank, ...(parts[item.part] ? [parts[item.part], term(`${item.part === "test" ? "Test" : "Validation"} part`), "."] : [])];
}

/** "Liked because of X, Y and Z" */
function because(item, view) {
  if (!item.because.length) return "";
  const titles = new Map(view.history.map((each) => [String(each.item), titleOf(each)]));
  const parts = item.because.map(({ item: used, share }) => [make("em", {}, make("bdi", {}, titles.get(String(used)) ?? String(used))), make("span", { class: "muted" }, ` ${Math.round(100 * share)} %`)]);
  const words = parts.flatMap((part, index) => [index === 0 ? "" : index === parts.length - 1 ? " and " : ", ", ...part]);
  return make("p", { class: "because" }, "Liked because of ", ...words, make("span", { class: "muted" }, " of its ", term("Item-history similarity", "similarity"), " to the history."));
}

/** The bars of an item: each voter's rank, then the rest of every voter together. */
function bars(item, view, facts) {
  const votes = new Map(item.votes.map((vote) => [vote.head, vote]));
  const rows = new Map();
  facts.reranked.forEach(({ voter, kind }, index) => {
    const vote = votes.get(voter), [key, name, about] = kind === "rank"
      ? [voter, vote?.vote > 0 ? `rank ${vote.rank} by ${voter}` : `not in ${voter}'s top ${facts.top_k}`, null]
      : [kind, KINDS[kind][1], KINDS[kind][0]];
    const row = rows.get(key) ?? { name, about, value: 0 };
    rows.set(key, { ...row, value: row.value + item.contributions[index] });
  });
  return [...rows.values()];
}

function lifted(item, view, facts) {
  const rows = bars(item, view, facts), total = item.contributions.reduce((sum, value) => sum + value, 0);
  const widest = Math.max(...view.items.filter((each) => each.contributions).flatMap((each) => bars(each, view, facts).map(({ value }) => Math.abs(value))), 0.01);
  const aspects = new Map();
  facts.reranked.forEach(({ aspect }, index) => aspects.set(aspect, (aspects.get(aspect) ?? 0) + item.contributions[index]));
  const timed = aspects.has("order") || aspects.has("trend") ? ` By ${[...aspects].map(([aspect, value]) => `${aspect} ${signed(value)}`).join(", ")}.` : "";
  const sorted = [...rows].sort((one, other) => other.value - one.value), up = sorted.filter(({ value }) => value > 0.05).slice(0, 2), down = sorted.at(-1);
  const words = [`${signed(total)} against this user's average candidate`, up.length ? `, most of it by ${up.map(({ name }) => name).join(" and ")}` : "", down.value < -0.05 ? `; lowered by ${down.name}` : ""].join("");
  return [
    make("h4", {}, "What lifted it ", make("span", { class: "muted" }, "by the ", term("Re-ranker"))), make("p", {}, `${words}.${timed}`),
    make("table", { class: "bars" }, make("tbody", {}, rows.map(({ name, about, value }) =>
      make("tr", {}, make("th", { scope: "row" }, about ? term(about, name) : name), make("td", {}, diverging(value / widest)), make("td", {}, signed(value)))))),
    make("p", { class: "muted small" }, "The weights were fitted together: of voters that agree, one may count against."),
  ];
}

function votes(item, ranks, view, facts) {
  const cast = item.votes.length > 0, most = Math.max(1, ...item.votes.map((vote) => vote.vote));
  const heads = item.votes.filter((vote) => vote.vote > 0).length, mean = figure(item.votes.reduce((sum, vote) => sum + vote.vote, 0) / item.votes.length);
  const summary = cast ? make("p", {}, `${heads} of ${count(item.votes.length, "voter")} have it${facts.top_k ? ` in their top ${facts.top_k}` : ""}; the mean of their `, term("Vote", "votes"), ` is ${mean}.`) : "";
  const rows = view.lists.filter(({ by }) => ranks.get(by) || item.votes.some((vote) => vote.head === by))
    .map(({ by }) => row(by, item.votes.find((vote) => vote.head === by), ranks.get(by), facts, most));
  return [make("h4", {}, cast ? "Votes" : "Ranks"), summary, make("table", { class: "bars cast" }, make("tbody", {}, rows))];
}

function row(by, vote, listed, facts, most) {
  const rank = vote ? vote.rank : listed?.rank, spread = vote ? deviation(vote.C, facts) : null;
  const factor = vote?.vote > 0 ? vote.vote / (vote.R + vote.C) : 1;
  const why = [
    !vote ? (listed?.score === undefined || facts.has_consensus ? "does not vote" : `score ${listed.score.toPrecision(4)}`) : vote.vote > 0 ? `R ${figure(vote.R)}` : "no vote",
    spread === null ? "" : ` + C ${figure(vote.C)}`, Math.abs(factor - 1) > 0.005 ? `, weight ${figure(factor)}` : "",
    spread === null ? "" : `; varied by ± ${spread < 9.95 ? spread.toFixed(1) : Math.round(spread)}`].join("");
  return make("tr", { class: "card" },
    make("th", { scope: "row" }, `${letter(indexOf(by, facts))} ${by}`, make("small", { class: "muted" }, why)),
    make("td", {}, rank ? `rank ${rank}` : "not listed"),
    make("td", {}, vote ? bar([[factor * vote.R, "r"], [factor * vote.C, "c"]].map(([value, kind]) => [value / most, kind])) : ""),
    make("td", {}, vote?.vote > 0 ? make("b", {}, figure(vote.vote)) : ""));
}

const strip = () => draw("svg", { viewBox: "0 0 200 10", preserveAspectRatio: "none", "aria-hidden": "true" });

/** Parts of a whole, side by side. */
function bar(parts) {
  const svg = strip();
  svg.append(draw("rect", { class: "ground", width: 200, height: 10 }));
  parts.reduce((x, [share, kind]) => { svg.append(draw("rect", { class: kind, x, width: 200 * share, height: 10 })); return x + 200 * share; }, 0);
  return svg;
}

/** From the middle to the right or left; share: from -1 to 1. */
function diverging(share) {
  const svg = strip();
  svg.append(draw("rect", { class: share < 0 ? "down" : "r", x: Math.min(100, 100 + 100 * share), width: 100 * Math.abs(share), height: 10 }), draw("rect", { class: "axis", x: 99.5, width: 1, height: 10 }));
  return svg;
}
