// A text field with a list of suggestions (the ARIA 1.2 combobox with a listbox).

import { make } from "./dom.js";

const PAUSE = 120; // milliseconds after a key

/** search(text, signal) -> [{id, name, detail}]; choose(option); failed(error) */
export function combobox(input, list, { search, choose, failed }) {
  let options = [], active = -1, timer = 0, pending = null;

  const isOpen = () => !list.hidden;

  function close() {
    clearTimeout(timer);
    pending?.abort();
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
    active = -1;
  }

  function show(results) {
    options = results;
    list.replaceChildren(...results.map((option, index) =>
      make("li", { role: "option", id: `${list.id}-${index}`, "aria-selected": "false" },
        make("span", {}, option.name), make("span", {}, option.detail))));
    if (!results.length) list.append(make("li", { role: "option", "aria-disabled": "true" }, "No match: type a part of an id, or beginnings of the words of a title"));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    mark(results.length && input.value.trim() ? 0 : -1);
  }

  function mark(index) {
    active = index;
    [...list.children].forEach((option, at) => option.setAttribute("aria-selected", String(at === index)));
    if (index < 0) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", list.children[index].id);
    list.children[index].scrollIntoView({ block: "nearest" });
  }

  async function update() {
    pending?.abort();
    const controller = (pending = new AbortController());
    try {
      const results = await search(input.value.trim(), controller.signal);
      if (!controller.signal.aborted) show(results);
    } catch (error) {
      if (error.name !== "AbortError") { close(); failed(error); }
    }
  }

  function pick(index) {
    const option = options[index];
    close();
    if (option) choose(option);
  }

  /** Enter waits for suggestions that have not arrived yet. */
  async function pickFirst() {
    clearTimeout(timer);
    await update();
    if (isOpen() && active >= 0) pick(active);
  }

  let typed = false; // since the list was shown
  const keys = {
    ArrowDown: () => (isOpen() ? mark(active + 1 < options.length ? active + 1 : 0) : update()),
    ArrowUp: () => (isOpen() ? mark(active > 0 ? active - 1 : options.length - 1) : update()),
    Enter: () => (isOpen() && active >= 0 && !typed ? pick(active) : input.value.trim() && pickFirst()),
    Escape: () => (isOpen() ? close() : (input.value = "")),
  };
  input.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Tab") return close();
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
    typed = false;
  });
  input.addEventListener("input", () => {
    typed = true;
    clearTimeout(timer);
    timer = setTimeout(() => { typed = false; update(); }, PAUSE);
  });
  input.addEventListener("click", () => { if (!isOpen()) { input.select(); update(); } });
  input.addEventListener("blur", close);
  list.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the focus
  list.addEventListener("click", (event) => {
    const index = [...list.children].indexOf(event.target.closest("li"));
    if (options[index]) pick(index);
  });
}
