// What stands in the place of what is not known; knows no numbers.

import { say } from "./dom.js";

/** Places that wait for an answer (`data-kind`), and what it means if that is empty (`data-none`). */
export class Unknowns {
  constructor(live) {
    this.live = live;
    this.places = [...document.querySelectorAll("[data-kind]")];
  }

  draw() {
    const { known, connection } = this.live;
    const waiting = connection.state === "unready" ? "The run is being prepared." : "loading…";
    this.places = this.places.filter((place) => {
      const { kind, none = "" } = place.dataset;
      say(place, known.has(kind) ? none : waiting);
      return !known.has(kind);
    });
  }
}
