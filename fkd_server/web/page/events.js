// What happened, newest first; what matters is also spoken to those who listen.

import { byId, Children, element, icon, named, onFilter, say } from "./dom.js";
import * as format from "./format.js";
import { identity } from "./live.js";

const SHOWN = 200;
const SPOKEN_EVERY_MS = 2000;
const SPOKEN = /^(round_closed|run_aborted|run_completed|client_lost|client_failed)$/;
const BAD = /_(aborted|failed|damaged|not_written|not_kept)$/;
const UNUSUAL = /(_lost|_denied|_refused|_extended|_called|_paused|fewer_clients|was_asleep)$/;

/** The events' section, and announcements. */
export class Events {
  constructor(live) {
    this.live = live;
    this.filter = "";
    this.spoken = null; // the last event when this page was opened, or spoken of
    this.toSay = [];
    this.rows = new Children(byId("events"), identity, row);
    onFilter("event-filter", (text) => {
      this.filter = text;
      this.draw();
    });
    setInterval(() => this.speak(), SPOKEN_EVERY_MS);
  }

  draw() {
    const { events } = this.live;
    const found = events.filter(({ name, client, phase, detail }) =>
      [name, client, phase, detail].some((text) => text.toLowerCase().includes(this.filter)));
    this.rows.show(found.slice(-SHOWN).reverse());
    if (!this.live.known.has("events")) return;
    const shown = `${Math.min(SHOWN, found.length)} of ${format.count(events.length)} shown`;
    say(byId("events-note"), `${shown}; the coordinator keeps its last ${format.count(1000)}.`);
    this.listenFor(events);
  }

  listenFor(events) {
    const fresh = this.spoken === null ? [] : events.slice(events.indexOf(this.spoken) + 1);
    this.spoken = events.at(-1);
    for (const { name, round, client } of fresh.filter((event) => SPOKEN.test(event.name))) {
      const words = [format.spoken(name), client, round === null ? "" : `round ${round}`];
      this.toSay.push(words.filter(Boolean).join(", "));
    }
  }

  speak() {
    if (this.toSay.length === 0) return;
    say(byId("announcements"), format.names(this.toSay, 3));
    this.toSay = [];
  }
}

function row({ time, name, round, phase, client, detail }) {
  const [tone, symbol, word] = BAD.test(name) ? ["bad", "cross", "error: "]
    : UNUSUAL.test(name) ? ["warn", "bang", "warning: "] : ["quiet", "info", ""];
  const where = [round === null ? "" : `round ${round}`, format.spoken(phase)].filter(Boolean).join(", ");
  return {
    element: element("li", { "data-tone": tone },
      element("time", { datetime: time, title: time }, format.clock(new Date(time))),
      element("span.what", icon(symbol), element("span.unseen", word), name),
      element("span.where", where, where && client ? ", " : "", named(client)),
      element("span.detail", detail)),
  };
}
