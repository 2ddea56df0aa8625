// A text field with a list of what it may mean (the ARIA 1.2 combobox with a list that it controls).

import { make } from "./dom.js";

const PAUSE = 120; // milliseconds after a key

/** search(text, signal) -> [{id, name, detail}]; choose(option); failed(error) */
export function combobox(input, list, { search, choose, failed }) {
  let options = [], active = -1, timer = 0, asked = null;

  const isOpen = () => !list.hidden;

  function close() {
    clearTimeout(timer);
    asked?.abort();
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
    active = -1;
  }

  function show(found) {
    options = found;
    list.replaceChildren(...found.map((option, place) =>
      make("li", { role: "option", id: `${list.id}-${place}`, "aria-selected": "false" },
        make("span", {}, option.name), make("span", {}, option.detail))));
    if (!found.length) list.append(make("li", { role: "option", "aria-disabled": "true" }, "Nothing is called so"));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    mark(found.length && input.value.trim() ? 0 : -1);
  }

  function mark(place) {
    active = place;
    [...list.children].forEach((each, index) => each.setAttribute("aria-selected", String(index === place)));
    if (place < 0) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", list.children[place].id);
    list.children[place].scrollIntoView({ block: "nearest" });
  }

  async function look() {
    asked?.abort();
    const mine = (asked = new AbortController());
    try {
      const found = await search(input.value.trim(), mine.signal);
      if (!mine.signal.aborted) show(found);
    } catch (error) {
      if (error.name !== "AbortError") { close(); failed(error); }
    }
  }

  function take(place) {
    const option = options[place];
    close();
    if (option) choose(option);
  }

  /** Enter before the answer is there waits for it. */
  async function takeFirst() {
    clearTimeout(timer);
    await look();
    if (isOpen() && active >= 0) take(active);
  }

  let typed = false; // since the list was shown
  const keys = {
    ArrowDown: () => (isOpen() ? mark(active + 1 < options.length ? active + 1 : 0) : look()),
    ArrowUp: () => (isOpen() ? mark(active > 0 ? active - 1 : options.length - 1) : look()),
    Enter: () => (isOpen() && active >= 0 && !typed ? take(active) : input.value.trim() && takeFirst()),
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
    timer = setTimeout(() => { typed = false; look(); }, PAUSE);
  });
  input.addEventListener("click", () => { if (!isOpen()) { input.select(); look(); } });
  input.addEventListener("blur", close);
  list.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the focus
  list.addEventListener("click", (event) => {
    const place = [...list.children].indexOf(event.target.closest("li"));
    if (options[place]) take(place);
  });
}
