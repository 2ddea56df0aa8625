// Elements from data. Text stays text: no data is ever read as markup. Terms are explained by the glossary's sentences.

export const at = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null));
  return element;
}

export function draw(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

export const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

const TERMS = {
  "Consensus": "The items in the order of the votes that they get from all voters (Eq. 12), reordered by the re-ranker if there is one.",
  "Voter": "Any ranking that counts in the consensus: a head, or a fixed voter.",
  "Fixed voter": "A voter without vectors, such as RP3beta in strong.",
  "Vote": "What a voter gives an item: R, or R + C. An item outside a voter's top K gets nothing from it.",
  "Rank importance": "R = exp(-rank / T): how much a vote counts by the item's rank (Eq. 10).",
  "Consistency": "C = exp(-deviation / T_c): how little a head's rank of an item has moved over its last rankings, measured by the standard deviation (Eq. 11).",
  "Re-ranker": "A linear model that reorders the first 150 items of the consensus, in the preset strong.",
  "Item z-score": "How far a user's score of an item lies above the mean of everyone's scores of that item, in standard deviations.",
  "Item-history similarity": "How close an item's vector is to the vectors of the items in the user's history, by their cosines.",
  "Cross-fitting": "Dividing the users into folds, in strong five, and scoring each fold with a model that was fitted on the others, so that nobody is scored by a model that was fitted on them.",
  "Test part": "The held-out items that only concf evaluate and its kin look at. None of its pairs is learned, unless you ask for it with --final.",
  "Validation part": "The held-out items that choose: in Algorithm 1 the best epoch and the end of training; in strong the settings and weights of the voters and the weights of the re-ranker.",
  "Fold-in": "Making a vector for a user who was not trained on from the items of a history: each head solves its own objective for the user (concf.strong.fold_in).",
  "Student head": "A head that learns from the consensus.",
};

/** A button that says what a term means; text: what it is called here. */
export function term(name, text = name.toLowerCase()) {
  const id = `term-${name.replace(/\W/g, "-")}`;
  if (!document.getElementById(id)) document.body.append(make("div", { id, class: "tip", popover: "auto" }, make("b", {}, name), ` ${TERMS[name]}`));
  return make("button", { type: "button", class: "term", popovertarget: id, "aria-describedby": id, onclick: place(id) }, text);
}

/** Below the button, within the window. */
const place = (id) => ({ currentTarget }) => {
  const at = currentTarget.getBoundingClientRect(), tip = document.getElementById(id);
  requestAnimationFrame(() => {
    tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${at.bottom + 6 + tip.offsetHeight > innerHeight ? at.top - tip.offsetHeight - 6 : at.bottom + 6}px`;
  });
};
