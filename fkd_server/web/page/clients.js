// The table of clients: sorted by any column, filtered, in pages of a hundred.

import { badge, byId, Children, element, fill, mark, named, say } from "./dom.js";
import * as format from "./format.js";
import { Pages } from "./pages.js";

const PER_PAGE = 100;

const STATES = {
  waiting: ["clock", "quiet"],
  working: ["gear", "info"],
  answered: ["check", "good"],
  failed: ["bang", "bad"],
  gone: ["gone", "warn"],
};

const byText = (one, other) => (one < other ? -1 : one > other ? 1 : 0);

// What a column sorts by; what a cell says, where that is not the same.
const COLUMNS = [
  { head: "Client", width: 11, value: (client) => client.name },
  { head: "State", width: 7.5, value: (client) => client.state },
  { head: "Activity", width: 15, value: (client) => client.activity },
  {
    head: "Last seen",
    width: 8.5,
    number: true,
    value: (client) => client.last_seen_s,
    text: (client) => ago(client.last_seen_s),
  },
  {
    head: "Uploads",
    width: 6,
    number: true,
    value: (client) => client.uploads,
    text: (client) => format.count(client.uploads),
  },
  {
    head: "Missed",
    width: 5.5,
    number: true,
    value: (client) => client.missed,
    text: (client) => format.count(client.missed),
  },
  {
    head: "Samples",
    width: 6.5,
    number: true,
    value: (client) => client.samples,
    text: (client) => (client.samples ? format.count(client.samples) : "–"),
  },
  {
    head: "Reliability",
    width: 6.5,
    number: true,
    value: (client) => client.reliability,
    text: (client) => (client.reliability ? client.reliability.toFixed(3) : "–"),
  },
  {
    head: "Weight",
    width: 6,
    number: true,
    value: (client) => client.weight,
    text: (client) => (client.weight ? format.percent(client.weight) : "–"),
  },
  {
    head: "Sent",
    width: 6.5,
    number: true,
    value: (client) => client.bytes.payload_up,
    text: (client) => format.bytes(client.bytes.payload_up),
  },
  {
    head: "Received",
    width: 6.5,
    number: true,
    value: (client) => client.bytes.payload_down,
    text: (client) => format.bytes(client.bytes.payload_down),
  },
];

function ago(seconds) {
  return seconds < 3 ? "now" : `${format.countdown(seconds)} ago`;
}

/** The clients' section. */
export class Clients {
  constructor(live) {
    this.live = live;
    this.column = 0;
    this.descending = false;
    this.filter = "";
    this.pages = new Pages("clients", () => this.draw());
    this.heads = COLUMNS.map((column, index) => this.head(column, index));
    const body = element("tbody");
    this.rows = new Children(
      body,
      (client) => client.name,
      (client) => row(client),
    );
    byId("clients").append(
      element(
        "table",
        { class: "clients" },
        element("caption", { class: "unseen" }, "Clients; the buttons in the heads sort"),
        element("colgroup", {}, ...COLUMNS.map(column)),
        element("thead", {}, element("tr", {}, ...this.heads)),
        body,
      ),
    );
    this.empty = element("p", { class: "empty" }, "No client has registered yet.");
    byId("clients").append(this.empty);
    byId("client-filter").addEventListener("input", (event) => {
      this.filter = event.target.value.trim().toLowerCase();
      this.draw();
    });
  }

  head(column, index) {
    const button = element("button", { type: "button", class: "sort" }, column.head);
    button.addEventListener("click", () => {
      this.descending = this.column === index ? !this.descending : Boolean(column.number);
      this.column = index;
      this.draw();
    });
    return element("th", { scope: "col", ...(column.number ? { class: "number" } : {}) }, button);
  }

  draw() {
    if (this.live.status === null) return;
    const { clients } = this.live.status;
    const { value, number } = COLUMNS[this.column],
      sign = this.descending ? -1 : 1;
    const compare = number ? (one, other) => one - other : byText;
    const shown = clients
      .filter(({ name, state }) => name.toLowerCase().includes(this.filter) || state.includes(this.filter))
      .sort((one, other) => sign * compare(value(one), value(other)) || byText(one.name, other.name));
    this.heads.forEach((head, index) => {
      mark(head, "aria-sort", index !== this.column ? "none" : this.descending ? "descending" : "ascending");
    });
    this.rows.show(this.pages.of(shown, PER_PAGE));
    this.empty.hidden = shown.length > 0;
    if (clients.length > 0) say(this.empty, "No client matches the filter.");
    const alive = clients.filter((client) => client.alive).length;
    const found = this.filter ? `${shown.length} shown of ` : "";
    say(byId("clients-note"), `${found}${format.several(clients.length, "client")}, ${alive} alive`);
  }
}

function column({ width }) {
  const made = element("col");
  made.style.inlineSize = `${width}em`;
  return made;
}

function row({ name }) {
  const state = element("span", { class: "mark-word" }),
    activity = element("span", { class: "activity" });
  const meter = element("i"),
    gauge = element("span", { class: "meter" }, meter);
  const others = COLUMNS.slice(3).map(() => element("td", { class: "number" }));
  const made = element(
    "tr",
    {},
    element("th", { scope: "row", title: name }, named(name)),
    element("td", {}, state),
    element("td", {}, activity, gauge),
    ...others,
  );
  return {
    element: made,
    update(client) {
      badge(state, STATES[client.state]?.[0] ?? "dots", client.state, STATES[client.state]?.[1] ?? "quiet");
      const busy = client.activity !== "";
      say(activity, busy ? `${format.percent(client.progress, 0)} ${client.activity}` : "–");
      mark(activity, "title", client.activity);
      mark(gauge, "data-idle", String(!busy));
      fill(meter, client.progress);
      others.forEach((cell, index) => say(cell, COLUMNS[index + 3].text(client)));
    },
  };
}
