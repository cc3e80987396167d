// The table of clients: sorted by any column, filtered, in pages of a hundred.

import { badge, byId, Children, element, named, onFilter, say } from "./dom.js";
import * as format from "./format.js";
import { Pages } from "./pages.js";

const PER_PAGE = 100;

const STATES = {
  waiting: ["clock", "quiet"],
  working: ["busy", "info"],
  answered: ["check", "good"],
  failed: ["bang", "bad"],
  left: ["left", "quiet"],
  gone: ["gone", "warn"],
};

const byText = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
const ago = (seconds) => (seconds < 3 ? "now" : `${format.countdown(seconds)} ago`);
const known = (text) => (value) => (value ? text(value) : "–");

// What a column sorts by; how its numbers are told, where it has numbers.
const COLUMNS = [
  { head: "Client", width: 11, value: (client) => client.name },
  { head: "State", width: 7.5, value: (client) => client.state },
  { head: "Activity", width: 15, value: (client) => client.activity },
  { head: "Last seen", width: 8.5, value: (client) => client.last_seen_s, text: ago },
  { head: "Uploads", width: 6, value: (client) => client.uploads, text: format.count },
  { head: "Missed", width: 5.5, value: (client) => client.missed, text: format.count },
  { head: "Samples", width: 6.5, value: (client) => client.samples, text: known(format.count) },
  { head: "Reliability", width: 6.5, value: (client) => client.reliability, text: known((share) => share.toFixed(3)) },
  { head: "Weight", width: 6, value: (client) => client.weight, text: known(format.percent) },
  { head: "Sent", width: 6.5, value: (client) => client.bytes.payload_up, text: format.bytes },
  { head: "Received", width: 6.5, value: (client) => client.bytes.payload_down, text: format.bytes },
];
const NUMBERS = COLUMNS.filter((column) => column.text);

/** The clients' section. */
export class Clients {
  constructor(live) {
    this.live = live;
    this.column = 0;
    this.descending = false;
    this.filter = "";
    this.pages = new Pages("clients-pages", () => this.draw());
    this.heads = COLUMNS.map((column, index) => this.head(column, index));
    this.empty = element("p.empty.none", "No client has registered yet.");
    const body = element("tbody");
    this.rows = new Children(body, (client) => client.name, row);
    byId("clients").append(
      element("table.clients",
        element("thead", element("tr", ...this.heads)),
        body),
      this.empty,
    );
    onFilter("client-filter", (text) => {
      this.filter = text;
      this.draw();
    });
  }

  head({ head, width, text }, index) {
    const button = element("button.sort", { type: "button" }, head);
    button.addEventListener("click", () => {
      this.descending = this.column === index ? !this.descending : Boolean(text);
      this.column = index;
      this.draw();
    });
    const made = element(text ? "th.number" : "th", { scope: "col" }, button);
    made.style.width = `${width}em`;
    return made;
  }

  draw() {
    if (this.live.status === null) return;
    const { clients } = this.live.status, { value, text } = COLUMNS[this.column];
    const sign = this.descending ? -1 : 1, compare = text ? (one, other) => one - other : byText;
    const shown = clients
      .filter(({ name, state }) => name.toLowerCase().includes(this.filter) || state.includes(this.filter))
      .sort((one, other) => sign * compare(value(one), value(other)) || byText(one.name, other.name));
    this.heads.forEach((head, index) => {
      const order = this.descending ? "descending" : "ascending";
      head.setAttribute("aria-sort", index === this.column ? order : "none");
    });
    this.rows.show(this.pages.of(shown, PER_PAGE));
    this.empty.hidden = shown.length > 0;
    if (clients.length > 0) say(this.empty, "No client matches the filter.");
    say(byId("clients-note"), (this.filter ? `${shown.length} shown of ` : "") + format.presence(clients));
  }
}

function row({ name }) {
  const state = element("span.mark-word"), activity = element("td"), numbers = NUMBERS.map(() => element("td.number"));
  return {
    element: element("tr",
      element("th", { scope: "row", title: name }, named(name)),
      element("td", state),
      activity,
      ...numbers),
    update(client) {
      const [symbol, tone] = STATES[client.state] ?? ["info", "quiet"];
      badge(state, symbol, client.state, tone);
      say(activity, client.activity ? `${format.percent(client.progress, 0)} ${client.activity}` : "–");
      activity.title = client.activity;
      numbers.forEach((cell, index) => say(cell, NUMBERS[index].text(NUMBERS[index].value(client))));
    },
  };
}
