// The panel of an item: each head's rank, R (Eq. 10), C (Eq. 11) and vote, below its list.

import { count, draw, make } from "./dom.js";
import { deviation, letter, titleOf } from "./lists.js";

const figure = (value) => value.toFixed(value > 0 && value < 0.01 ? 3 : 2);

/** Fill the panel with an item of a view. */
export function explain(panel, id, view, facts, close) {
  const same = (each) => String(each.item) === id;
  const agreed = view.consensus?.items.find(same);
  const listed = view.lists.flatMap((list) => list.items.filter(same).map((item) => [list.by, item]));
  const item = agreed ?? listed[0][1];
  const votes = agreed?.votes ?? view.other_items.find(same)?.votes ?? [];
  const cards = view.lists.map(({ by }) => card(by, votes.find((vote) => vote.head === by), new Map(listed).get(by), facts));
  panel.classList.toggle("single", !view.consensus);
  panel.replaceChildren(
    make("div", { class: "about" }, make("h2", {}, titleOf(item)), item.title ? make("p", { class: "muted" }, id) : null,
      make("p", {}, sentences(item, agreed, votes, view, facts).join(" "))),
    ...cards, make("button", { type: "button", class: "close", "aria-label": "Close", onclick: close }, "✕"));
}

function sentences(item, agreed, votes, view, facts) {
  const heads = votes.filter((vote) => vote.vote > 0).length, shown = view.consensus?.items.length;
  const mean = figure(votes.reduce((sum, vote) => sum + vote.vote, 0) / votes.length);
  const among = facts.top_k ? ` in their top ${facts.top_k}` : "";
  return [
    view.consensus ? (agreed ? `Rank ${agreed.rank} in the consensus.` : `Not in the top ${shown} of the consensus.`) : null,
    votes.length ? `${heads} of ${count(votes.length, facts.fixed_voters.length ? "voter" : "head")} have it${among}; the mean of their votes is ${mean}.` : null,
    ...votes.filter((vote) => facts.fixed_voters.includes(vote.head) && vote.rank).map((vote) => `${vote.head} ranks it ${vote.rank}.`),
    item.held_out ? "Held out: used by this user, but not trained on." : null,
  ].filter(Boolean);
}

function card(by, vote, listed, facts) {
  const rank = vote?.rank ?? listed?.rank, spread = vote ? deviation(vote.C, facts) : null;
  const consistency = spread === null ? "" : ` + C ${figure(vote.C)}`;
  const factor = vote ? vote.vote / (vote.R + vote.C) : 1, weight = vote?.vote > 0 && Math.abs(factor - 1) > 0.005 ? `, weight ${figure(factor)}` : "";
  const why = !vote ? (listed ? `score ${listed.score.toPrecision(4)}` : "") : vote.vote > 0 ? `R ${figure(vote.R)}${consistency}${weight}` : "no vote";
  const how = spread === null ? "" : `varied by ± ${spread < 9.95 ? spread.toFixed(1) : Math.round(spread)}`;
  return make("div", { class: "card" },
    make("h3", {}, `${letter(facts.heads.indexOf(by))} ${by}`),
    make("p", { class: "figures" }, make("span", {}, rank ? `rank ${rank}` : "not listed"), vote?.vote > 0 ? make("b", {}, figure(vote.vote)) : null),
    vote ? bar(vote) : null, make("p", { class: "muted" }, why), make("p", { class: "muted" }, how));
}

/** R and C side by side, each at most 1. */
function bar(vote) {
  const svg = draw("svg", { viewBox: "0 0 200 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(draw("rect", { class: "ground", width: 200, height: 10 }), draw("rect", { class: "r", width: 100 * vote.R, height: 10 }),
    draw("rect", { class: "c", x: 100 * vote.R, width: 100 * vote.C, height: 10 }));
  return svg;
}
