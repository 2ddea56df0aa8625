// Why an item stands where it stands: each head's rank, R (Eq. 10), C (Eq. 11) and vote, below its list.

import { count, draw, make } from "./dom.js";
import { called, letter, moved } from "./lists.js";

const figure = (value) => value.toFixed(value > 0 && value < 0.01 ? 3 : 2);

/** The panel of an item that is in one of the lists of a view. */
export function explain(panel, id, view, facts, close) {
  const same = (each) => String(each.item) === id;
  const agreed = view.consensus?.items.find(same);
  const listed = view.lists.flatMap((list) => list.items.filter(same).map((item) => [list.by, item]));
  const item = agreed ?? listed[0][1];
  const votes = agreed?.votes ?? view.others.find(same)?.votes ?? [];
  const cards = view.lists.map(({ by }) => card(by, votes.find((vote) => vote.head === by), new Map(listed).get(by), facts));
  panel.classList.toggle("single", !view.consensus);
  panel.replaceChildren(
    make("div", { class: "about" }, make("h2", {}, called(item)), item.title ? make("p", { class: "muted" }, id) : null,
      make("p", {}, sentences(item, agreed, votes, view, facts).join(" "))),
    ...cards, make("button", { type: "button", class: "close", "aria-label": "Close", onclick: close }, "✕"));
}

function sentences(item, agreed, votes, view, facts) {
  const heads = votes.filter((vote) => vote.vote > 0).length, shown = view.consensus?.items.length;
  const mean = figure(votes.reduce((sum, vote) => sum + vote.vote, 0) / votes.length);
  const among = facts.places ? ` among their first ${facts.places}` : "";
  return [
    view.consensus ? (agreed ? `Place ${agreed.rank} of the consensus.` : `Not among the first ${shown} of the consensus.`) : null,
    votes.length ? `${heads} of ${count(votes.length, facts.fixed_voters.length ? "voter" : "head")} have it${among}; the mean of their votes is ${mean}.` : null,
    ...votes.filter((vote) => facts.fixed_voters.includes(vote.head) && vote.rank).map((vote) => `${vote.head} has it at rank ${vote.rank}.`),
    item.held_out ? "It was held out: used by this user, but not learned from." : null,
  ].filter(Boolean);
}

function card(by, vote, listed, facts) {
  const rank = vote?.rank ?? listed?.rank, places = vote ? moved(vote.C, facts) : null;
  const steady = places === null ? "" : ` + C ${figure(vote.C)}`;
  const why = !vote ? (listed ? `score ${listed.score.toPrecision(4)}` : "") : vote.vote > 0 ? `R ${figure(vote.R)}${steady}` : "no vote";
  const how = places === null ? "" : `moved ± ${places < 9.95 ? places.toFixed(1) : Math.round(places)}`;
  return make("div", { class: "card" },
    make("h3", {}, `${letter(facts.heads.indexOf(by))} ${by}`),
    make("p", { class: "figures" }, make("span", {}, rank ? `rank ${rank}` : "not listed"), vote?.vote > 0 ? make("b", {}, figure(vote.vote)) : null),
    vote ? bar(vote) : null, make("p", { class: "muted" }, why), make("p", { class: "muted" }, how));
}

/** R and C beside each other, of at most 1 each. */
function bar(vote) {
  const svg = draw("svg", { viewBox: "0 0 200 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(draw("rect", { class: "ground", width: 200, height: 10 }), draw("rect", { class: "r", width: 100 * vote.R, height: 10 }),
    draw("rect", { class: "c", x: 100 * vote.R, width: 100 * vote.C, height: 10 }));
  return svg;
}
