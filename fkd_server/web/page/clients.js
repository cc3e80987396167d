// The table of clients: sorted by any column, filtered, a hundred to a page.

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

// What a column sorts by; how its numbers are told, where it has numbers. Phones show the first ones.
const COLUMNS = [
  { head: "Client", width: 12, value: ({ name }) => name },
  { head: "State", width: 9.5, value: ({ state }) => state },
  { head: "Last seen", width: 10.5, value: (client) => client.last_seen_s, text: ago },
  { head: "Missed", width: 6.6, value: ({ missed }) => missed, text: format.count },
  { head: "Activity", width: 15.5, value: ({ activity }) => activity, title: ({ activity }) => activity },
  { head: "Uploads", width: 7.2, value: ({ uploads }) => uploads, text: format.count },
  { head: "Samples", width: 7.7, value: ({ samples }) => samples, text: known(format.count) },
  { head: "Reliability", width: 8.8, value: (client) => client.reliability, text: known((share) => share.toFixed(3)) },
  {
    head: "Weight", width: 7.2, value: ({ weight }) => weight, text: known(format.percent),
    title: ({ weight }) => (weight ? "" : "no share in the last average"),
  },
  { head: "Sent", width: 7.2, value: ({ bytes }) => bytes.payload_up, text: format.bytes },
  { head: "Received", width: 7.8, value: ({ bytes }) => bytes.payload_down, text: format.bytes },
];
const TOLD = COLUMNS.slice(2);

/** The clients' section. */
export class Clients {
  constructor(live) {
    this.live = live;
    this.column = 0;
    this.descending = false;
    this.filter = "";
    this.pages = new Pages("clients-pages", () => this.draw());
    this.heads = COLUMNS.map((column, index) => this.head(column, index));
    this.empty = byId("clients-none");
    const body = element("tbody");
    this.rows = new Children(body, (client) => client.name, row);
    this.empty.before(
      element("table.clients",
        element("thead", element("tr", ...this.heads)),
        body),
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
    made.style.width = `${width}%`;
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
  const state = element("span.mark-word"), cells = TOLD.map(({ text }) => element(text ? "td.number" : "td"));
  return {
    element: element("tr",
      element("th", { scope: "row", title: name }, named(name)),
      element("td", state),
      ...cells),
    update(client) {
      const [symbol, tone] = STATES[client.state] ?? ["info", "quiet"];
      badge(state, symbol, client.state, tone);
      const share = client.state === "working" ? `${format.percent(client.progress, 0)} ` : "";
      const activity = client.activity ? share + client.activity : "–";
      TOLD.forEach(({ value, text, title }, index) => {
        say(cells[index], text ? text(value(client)) : activity);
        if (title) cells[index].title = title(client);
      });
    },
  };
}
