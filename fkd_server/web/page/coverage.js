// Which site has how many samples of which class: cells tinted on a logarithmic scale.

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
    this.pages = new Pages("coverage-pages", () => this.draw());
    this.drawn = "";
  }

  draw() {
    const { status } = this.live, { classes } = status;
    const sites = status.clients
      .filter((client) => client.class_counts.length > 0)
      .map(({ name, class_counts: counts }) => ({ name, counts }));
    const recall = this.live.inOrder().findLast((round) => round.recall.length > 0);
    const begun = status.clients.length > 0 && status.rounds_done > 0;
    const drawn = JSON.stringify([sites, classes, recall?.round, recall?.recall, this.pages.page, begun]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    if (sites.length === 0) return sayEmpty(begun);
    const perPage = Math.max(4, Math.min(MOST_CLIENTS, Math.floor(MOST_CELLS / classes.length)));
    const most = Math.max(...sites.map(({ counts }) => Math.max(...counts)));
    const sums = classes.map((_, label) => sites.reduce((sum, { counts }) => sum + counts[label], 0));
    const holders = classes.map((_, label) => sites.filter(({ counts }) => counts[label] > 0).length);
    const foot = [line("all sites", sums.map(format.short)), line("sites with it", holders.map(String))];
    if (recall) {
      const shares = recall.recall.map((share) => (share < 0 ? "–" : (100 * share).toFixed(0)));
      foot.push(line(`recall, round ${recall.round}`, shares));
    }
    const rows = this.pages.of(sites, perPage).map(({ name, counts }) =>
      element("tr",
        element("th", { scope: "row", title: name }, named(name)),
        ...counts.map((samples, label) => cell(samples, most, `${name}, ${classes[label]}`))));
    byId("coverage").replaceChildren(
      element("table.heat",
        element("thead", heads(classes)),
        element("tbody", ...rows),
        element("tfoot", ...foot)),
    );
    const lacking = sums.filter((sum) => sum === 0).length, unknown = status.clients.length - sites.length;
    const told = [`${format.several(sites.length, "site")}, ${classes.length} classes`];
    if (lacking > 0) told.push(`${lacking} that no site has`);
    if (unknown > 0) told.push(`not known of ${format.several(unknown, "client")}`);
    say(byId("coverage-note"), told.join("; "));
  }
}

function sayEmpty(begun) {
  const why = begun
    ? "Not known: no site has sent second moments in the clear. With secure aggregation or noise they do not tell, " +
      "and a run without them never asks."
    : "Known once sites have sent second moments, which count the samples of each class.";
  byId("coverage").replaceChildren(element("p.empty", why));
}

function heads(classes) {
  const kind = classes.some((name) => name.length > SHORT_NAME) ? "upright" : "flat";
  const head = (name) => element(`th.${kind}`, { scope: "col", title: name }, element("span", named(name)));
  return element("tr", element("th", { scope: "col" }, "Site"), ...classes.map(head));
}

const line = (title, texts) =>
  element("tr", element("th", { scope: "row" }, title), ...texts.map((text) => element("td", text)));

const cell = (samples, most, where) =>
  element(`td.shade-${shade(samples, most)}`, { title: `${where}: ${format.count(samples)}` }, format.short(samples));

/** 0 for none; else where it is from 1 to the most, by logarithms. */
const shade = (samples, most) =>
  samples && Math.min(SHADES - 1, 1 + Math.floor(((SHADES - 1) * Math.log(samples)) / Math.log(most + 1)));
