// Makes and changes elements; whatever comes from the network becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

// In lines, on 16 x 16. They stand beside words: state is never told by colour alone.
const ICONS = {
  wait: "M4 2h8M4 14h8M5 2c0 5 6 7 6 12M11 2c0 5-6 7-6 12",
  play: "M5 3v10l8-5z",
  pause: "M5 3.5v9m6-9v9",
  check: "m2.5 8.5 4 4 7-8.5",
  cross: "m3.5 3.5 9 9m0-9-9 9",
  clock: "M8 2a6 6 0 1 0 .01 0zm0 2.6V8l2.2 1.6",
  busy: "M8 2a6 6 0 1 0 6 6M8 8h.01",
  bang: "M8 2 1.7 13.5h12.6zm0 4.6v2.9m0 2.2h.01",
  gone: "M8 2a6 6 0 1 0 .01 0zM4 12l8-8",
  left: "M8.5 2.5H3v11h5.5M6.5 8H14m-2.8-2.8L14 8l-2.8 2.8",
  info: "M8 2a6 6 0 1 0 .01 0zm0 5.6V11m0-6h.01",
};

/** The element of index.html with that id. */
export const byId = (id) => document.getElementById(id);

/** "td.number" makes <td class="number">; then come attributes, if any, and children, of which strings become text. */
export const element = (kind, ...content) => made((tag) => document.createElement(tag), kind, content);

/** As element, for SVG. */
export const shape = (kind, ...content) => made((tag) => document.createElementNS(SVG, tag), kind, content);

function made(create, kind, [first, ...others]) {
  const [tag, ...classes] = kind.split(".");
  const node = create(tag);
  if (classes.length > 0) node.setAttribute("class", classes.join(" "));
  if (first?.constructor === Object)
    for (const [name, value] of Object.entries(first)) node.setAttribute(name, value);
  else if (first !== undefined) node.append(first);
  node.append(...others);
  return node;
}

/** One of ICONS; the word beside it says what it means. */
export const icon = (name) =>
  shape("svg.icon", { "aria-hidden": "true", viewBox: "0 0 16 16" }, shape("path", { d: ICONS[name] }));

/** A name from outside, kept from turning the direction of the text around it. */
export const named = (text) => element("bdi", text);

/** Sets an element's text if it is another. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Fills a bar to a share of its length. */
export function fill(bar, share) {
  bar.style.width = `${(100 * Math.min(1, Math.max(0, share || 0))).toFixed(1)}%`;
}

/** Shows an icon and a word; redraws only what is another. */
export function badge(node, iconName, text, tone) {
  if (node.dataset.icon !== iconName) {
    node.dataset.icon = iconName;
    node.replaceChildren(icon(iconName), element("span"));
  }
  node.dataset.tone = tone;
  say(node.lastChild, text);
}

/** Tells what is typed into a field to filter by, in small letters. */
export function onFilter(id, take) {
  byId(id).addEventListener("input", ({ target }) => take(target.value.trim().toLowerCase()));
}

/** The children of one parent, kept for items by key. */
export class Children {
  /** `make(item)` returns `{ element, update(item) }`. */
  constructor(parent, keyOf, make) {
    Object.assign(this, { parent, keyOf, make, kept: new Map() });
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
      if (!this.kept.has(key)) this.kept.set(key, this.make(item));
      const entry = this.kept.get(key);
      entry.update?.(item);
      if (entry.element === place) place = place.nextSibling;
      else this.parent.insertBefore(entry.element, place);
    }
  }
}

/** A table: heads are texts, the first cell of a row heads it; `numeric` tells which columns are numbers. */
export function table(heads, rows, numeric) {
  const line = (cells, scope) =>
    element("tr", ...cells.map((content, column) => {
      const kind = numeric(column) ? ".number" : "";
      if (scope === "row" && column > 0) return element(`td${kind}`, content);
      return element(`th${kind}`, { scope }, content);
    }));
  const body = rows.map((cells) => line(cells, "row"));
  return element("table", element("thead", line(heads, "col")), element("tbody", ...body));
}
