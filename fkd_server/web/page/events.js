// What happened, newest first; what matters is also spoken to those who listen.

import { byId, Children, element, icon, named, say } from "./dom.js";
import * as format from "./format.js";

const SHOWN = 200;
const SPOKEN_EVERY_MS = 2000;
const SPOKEN = /^(round_closed|run_aborted|run_completed|client_lost|client_failed)$/;
const BAD = /(_aborted|_failed|_damaged|_not_written|_not_kept)$/;
const UNUSUAL = /(_lost|_denied|_refused|_extended|_taken|_called|fewer_clients|was_asleep|_paused)$/;

/** The events' section, and announcements. */
export class Events {
  constructor(live) {
    this.live = live;
    this.filter = "";
    this.spoken = null; // the last event when this page was opened, or spoken of
    this.toSay = [];
    this.wasLost = false;
    this.rows = new Children(byId("events"), (event) => `${event.number} ${event.time}`, row);
    byId("event-filter").addEventListener("input", (event) => {
      this.filter = event.target.value.trim().toLowerCase();
      this.draw();
    });
    setInterval(() => this.speak(), SPOKEN_EVERY_MS);
  }

  draw() {
    const { events, connection } = this.live;
    const found = events.filter((event) => this.matches(event));
    this.rows.show(found.slice(-SHOWN).reverse());
    say(
      byId("events-note"),
      events.length === 0
        ? "Nothing has happened yet."
        : `${Math.min(SHOWN, found.length)} of ${events.length} shown; the coordinator keeps its last 1${"\u202f"}000.`,
    );
    this.listenFor(events);
    if (connection.state === "lost" && !this.wasLost) this.toSay.push("Connection to the coordinator lost");
    if (connection.state === "live" && this.wasLost) this.toSay.push("Connected again");
    this.wasLost = connection.state === "lost";
  }

  matches(event) {
    return (
      this.filter === "" ||
      [event.name, event.client, event.phase, event.detail].some((text) =>
        text.toLowerCase().includes(this.filter),
      )
    );
  }

  listenFor(events) {
    const newest = events.at(-1);
    if (newest === undefined) return;
    const fresh = this.spoken === null ? [] : events.slice(events.indexOf(this.spoken) + 1);
    this.spoken = newest;
    for (const { name, round, client } of fresh.filter((event) => SPOKEN.test(event.name))) {
      this.toSay.push(
        [name.replaceAll("_", " "), client, round === null ? "" : `round ${round}`]
          .filter(Boolean)
          .join(", "),
      );
    }
  }

  speak() {
    if (this.toSay.length === 0) return;
    say(byId("announcements"), format.names(this.toSay, 3));
    this.toSay = [];
  }
}

function row(event) {
  const [level, symbol] = BAD.test(event.name)
    ? ["bad", "cross"]
    : UNUSUAL.test(event.name)
      ? ["warn", "bang"]
      : ["quiet", "info"];
  const word = { bad: "error", warn: "warning", quiet: "" }[level];
  const where = [event.round === null ? "" : `round ${event.round}`, event.phase.replaceAll("_", " ")]
    .filter(Boolean)
    .join(", ");
  const made = element(
    "li",
    { "data-tone": level },
    element("time", { datetime: event.time, title: event.time }, format.clock(new Date(event.time))),
    element(
      "span",
      { class: "what" },
      icon(symbol),
      ...(word ? [element("span", { class: "unseen" }, `${word}: `)] : []),
      event.name,
    ),
    element(
      "span",
      { class: "where" },
      where,
      ...(event.client ? [where ? ", " : "", named(event.client)] : []),
    ),
    element("span", { class: "detail" }, event.detail),
  );
  return { element: made, update() {} };
}
