// Makes and changes elements; whatever comes from the network becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** The element of index.html with that id. */
export const byId = (id) => document.getElementById(id);

/** An HTML element with attributes and children; strings become text. */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** As element, for SVG. */
export function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** One of the shapes of index.html; the word beside it says what it means. */
export function icon(name) {
  return shape("svg", { class: "icon", "aria-hidden": "true" }, shape("use", { href: `#icon-${name}` }));
}

/** A name from outside, kept from turning the direction of the text around it. */
export const named = (text) => element("bdi", {}, text);

/** Sets an element's text if it is another. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets an attribute if it is another. */
export function mark(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** Fills a bar to a share of its length. */
export function fill(bar, share) {
  const width = `${(100 * Math.min(1, Math.max(0, share || 0))).toFixed(1)}%`;
  if (bar.style.inlineSize !== width) bar.style.inlineSize = width;
}

/** Shows an icon and a word; redraws only when either changes. */
export function badge(node, iconName, text, tone) {
  if (node.dataset.icon !== iconName) {
    node.dataset.icon = iconName;
    node.replaceChildren(icon(iconName), element("span"));
  }
  mark(node, "data-tone", tone);
  say(node.lastChild, text);
}

/** The children of one parent, kept for items by key. */
export class Children {
  /** `make(item)` returns `{ element, update(item) }`. */
  constructor(parent, keyOf, make) {
    this.parent = parent;
    this.keyOf = keyOf;
    this.make = make;
    this.kept = new Map();
  }

  /** Shows these items, in this order; touches only what differs. */
  show(items) {
    const wanted = new Set(items.map(this.keyOf));
    for (const [key, entry] of this.kept) {
      if (wanted.has(key)) continue;
      entry.element.remove();
      this.kept.delete(key);
    }
    let place = this.parent.firstChild;
    for (const item of items) {
      const key = this.keyOf(item);
      let entry = this.kept.get(key);
      if (entry === undefined) this.kept.set(key, (entry = this.make(item)));
      entry.update(item);
      if (entry.element === place) place = place.nextSibling;
      else this.parent.insertBefore(entry.element, place);
    }
  }
}

/** A table: heads are texts, the first cell of a row heads it; `numeric` tells which columns are numbers. */
export function table(caption, heads, rows, numeric = (column) => column > 0) {
  const kind = (column) => (numeric(column) ? { class: "number" } : {});
  return element(
    "table",
    {},
    element("caption", { class: "unseen" }, caption),
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        ...heads.map((text, column) => element("th", { scope: "col", ...kind(column) }, text)),
      ),
    ),
    element(
      "tbody",
      {},
      ...rows.map((cells) =>
        element(
          "tr",
          {},
          ...cells.map((cell, column) =>
            column === 0
              ? element("th", { scope: "row", ...kind(column) }, cell)
              : element("td", kind(column), cell),
          ),
        ),
      ),
    ),
  );
}
