// Which site has how many samples of which class: a table whose cells are tinted on a logarithmic scale.

import { byId, element, named, say } from "./dom.js";
import * as format from "./format.js";
import { Pages } from "./pages.js";

const SHADES = 7;
const MOST_CELLS = 3000;
const MOST_CLIENTS = 40;
const SHORT_NAME = 3;

/** The heat map. */
export class Coverage {
  constructor(live) {
    this.live = live;
    this.pages = new Pages("coverage", () => this.draw());
    this.drawn = "";
  }

  draw() {
    const { status } = this.live,
      { classes } = status;
    const clients = status.clients
      .filter((client) => client.class_counts.length > 0)
      .map(({ name, class_counts: counts }) => ({ name, counts }));
    const recall = this.live.inOrder().findLast((round) => round.recall.length > 0);
    const drawn = JSON.stringify([clients, classes, recall?.round, recall?.recall, this.pages.page]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    byId("coverage-legend").hidden = clients.length === 0;
    if (clients.length === 0) return this.sayEmpty(status);
    const perPage = Math.max(4, Math.min(MOST_CLIENTS, Math.floor(MOST_CELLS / classes.length)));
    const page = this.pages.of(clients, perPage);
    const sums = classes.map((_, label) =>
      clients.reduce((sum, client) => sum + (client.counts[label] ?? 0), 0),
    );
    const most = Math.max(1, ...clients.flatMap((client) => client.counts));
    byId("coverage").replaceChildren(heatMap(classes, page, sums, clients, most, recall));
    drawLegend(most);
    const lacking = sums.filter((sum) => sum === 0).length,
      unknown = status.clients.length - clients.length;
    say(
      byId("coverage-note"),
      [
        `${format.several(clients.length, "site")}, ${classes.length} classes`,
        ...(lacking > 0 ? [`${lacking} that no site has`] : []),
        ...(unknown > 0 ? [`not known of ${format.several(unknown, "client")}`] : []),
      ].join("; "),
    );
  }

  sayEmpty({ clients, rounds_done: done }) {
    say(byId("coverage-note"), "");
    byId("coverage-pages").hidden = true;
    byId("coverage").replaceChildren(
      element(
        "p",
        { class: "empty" },
        clients.length === 0 || done === 0
          ? "Known once sites have sent second moments, which count the samples of each class."
          : "Not known: no site has sent second moments in the clear. With secure aggregation or noise they do not tell, and a run without them never asks.",
      ),
    );
  }
}

function heatMap(classes, page, sums, clients, most, recall) {
  const upright = classes.some((name) => name.length > SHORT_NAME);
  const head = element(
    "tr",
    {},
    element("th", { scope: "col" }, "Site"),
    ...classes.map((name) =>
      element(
        "th",
        { scope: "col", title: name, class: upright ? "upright" : "flat" },
        element("span", {}, named(name)),
      ),
    ),
  );
  const holders = classes.map((_, label) => clients.filter((client) => client.counts[label] > 0).length);
  const foot = [summary("all sites", sums.map(format.short)), summary("sites with it", holders.map(String))];
  if (recall)
    foot.push(
      summary(
        `recall, round ${recall.round}`,
        recall.recall.map((share) => (share < 0 ? "–" : (100 * share).toFixed(0))),
      ),
    );
  return element(
    "table",
    { class: "heat" },
    element("caption", { class: "unseen" }, "Samples of each class at each site"),
    element("thead", {}, head),
    element(
      "tbody",
      {},
      ...page.map((client) =>
        element(
          "tr",
          {},
          element("th", { scope: "row", title: client.name }, named(client.name)),
          ...classes.map((name, label) => cell(client, name, client.counts[label] ?? 0, most)),
        ),
      ),
    ),
    element("tfoot", {}, ...foot),
  );
}

const summary = (title, texts) =>
  element("tr", {}, element("th", { scope: "row" }, title), ...texts.map((text) => element("td", {}, text)));

function cell(client, name, samples, most) {
  return element(
    "td",
    { class: `shade-${shade(samples, most)}`, title: `${client.name}, ${name}: ${format.count(samples)}` },
    format.short(samples),
  );
}

const shade = (samples, most) =>
  samples === 0
    ? 0
    : Math.min(SHADES - 1, 1 + Math.floor(((SHADES - 1) * Math.log(samples)) / Math.log(most + 1)));

function drawLegend(most) {
  const from = (index) => Math.max(1, Math.ceil((most + 1) ** ((index - 1) / (SHADES - 1)) - 1e-9));
  const steps = Array.from({ length: SHADES }, (_, index) => (index === 0 ? 0 : from(index))).filter(
    (value, index, all) => value <= most && all.indexOf(value) === index,
  );
  byId("coverage-legend").replaceChildren(
    "Samples ",
    ...steps.map((value) =>
      element(
        "span",
        { class: `swatch shade-${shade(value, most)}` },
        value === 0 ? "0" : `${format.short(value)}+`,
      ),
    ),
    " each shade a step of a logarithmic scale; recall in percent on the coordinator's test set",
  );
}
