// Long lists in pages: which part is shown, and the buttons that turn to another.

import { byId, say } from "./dom.js";
import * as format from "./format.js";

/** The buttons in the element `NAME-pages`. */
export class Pages {
  constructor(name, turned) {
    this.name = name;
    this.page = 0;
    for (const [button, by] of [
      ["back", -1],
      ["next", 1],
    ]) {
      byId(`${name}-${button}`).addEventListener("click", () => {
        this.page += by;
        turned();
      });
    }
  }

  /** The items of the page that is shown. */
  of(items, perPage) {
    const last = Math.max(0, Math.ceil(items.length / perPage) - 1);
    this.page = Math.min(last, Math.max(0, this.page));
    const from = this.page * perPage,
      shown = items.slice(from, from + perPage);
    byId(`${this.name}-pages`).hidden = last === 0;
    byId(`${this.name}-back`).disabled = this.page === 0;
    byId(`${this.name}-next`).disabled = this.page === last;
    say(byId(`${this.name}-shown`), `${from + 1}–${from + shown.length} of ${format.count(items.length)}`);
    return shown;
  }
}
