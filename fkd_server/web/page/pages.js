// Long lists in pages: which part is shown, and the buttons that turn to another.

import { byId, element, say } from "./dom.js";
import * as format from "./format.js";

/** The buttons in the element of that id. */
export class Pages {
  constructor(id, turned) {
    this.page = 0;
    this.shown = element("span");
    [this.back, this.next] = [["Previous", -1], ["Next", 1]].map(([word, by]) => {
      const button = element("button", { type: "button" }, word);
      button.addEventListener("click", () => {
        this.page += by;
        turned();
      });
      return button;
    });
    this.place = byId(id);
    this.place.append(this.back, this.shown, this.next);
  }

  /** The items of the page that is shown. */
  of(items, perPage) {
    const last = Math.max(0, Math.ceil(items.length / perPage) - 1);
    this.page = Math.min(last, Math.max(0, this.page));
    const from = this.page * perPage, shown = items.slice(from, from + perPage);
    this.place.hidden = last === 0;
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page === last;
    say(this.shown, `${from + 1}–${from + shown.length} of ${format.count(items.length)}`);
    return shown;
  }
}
