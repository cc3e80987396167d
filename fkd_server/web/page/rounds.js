// Rounds that are over: where the last ones spent their time, and all of them as a table.

import { byId, Children, element, say, table } from "./dom.js";
import * as format from "./format.js";

const LAST = 10;
const MOST_REASONS = 3; // of one phase

const phasesOf = (rounds) => [...new Set(rounds.flatMap((round) => round.phases.map(({ phase }) => phase)))];

/** The timeline and its table. */
export class Rounds {
  constructor(live) {
    this.live = live;
    this.explained = ""; // the phases in the legend
    this.rows = new Children(byId("timeline"), (row) => row.round.round, timelineRow);
    this.details = byId("rounds-table").closest("details");
    this.details.addEventListener("toggle", () => this.drawTable());
  }

  draw() {
    const last = this.live.inOrder().slice(-LAST).reverse();
    const longest = Math.max(0.001, ...last.map((round) => round.seconds));
    this.rows.show(last.map((round) => ({ round, longest })));
    const kinds = [...new Set(phasesOf(last).map(format.kind))];
    if (kinds.join() !== this.explained) {
      this.explained = kinds.join();
      const keys = kinds.map((kind) => element("span", { class: `key phase-${kind}` }, kind));
      byId("phase-legend").replaceChildren(...keys, "the rest is between phases");
    }
    this.drawTable();
  }

  drawTable() {
    if (!this.details.open) return;
    const rounds = this.live.inOrder().reverse(), phases = phasesOf(rounds);
    const seconds = (round, name) => round.phases.find(({ phase }) => phase === name)?.seconds.toFixed(1) ?? "–";
    byId("rounds-table").replaceChildren(
      table(
        ["Round", "Seconds", ...phases.map((phase) => `${format.spoken(phase)}, s`), "Asked", "Published", "Notes"],
        rounds.map((round) => [
          String(round.round),
          round.seconds.toFixed(1),
          ...phases.map((phase) => seconds(round, phase)),
          String(round.cohort.length),
          format.candidate(round.published) || "–",
          notes(round),
        ]),
        (column) => column <= phases.length + 2,
      ),
    );
  }
}

function timelineRow({ round: { round } }) {
  const track = element("span.track"), sum = element("span.number");
  return {
    element: element("p.bar-row", element("span.name", `Round ${round}`), track, sum),
    update({ round: { phases, seconds: all }, longest }) {
      say(sum, format.duration(all));
      track.replaceChildren(...phases.map(({ phase, seconds }) => {
        const text = `${format.spoken(phase)} ${format.duration(seconds)}`;
        const bar = element("i", { class: `phase-${format.kind(phase)}`, title: text }, element("span", text));
        bar.style.width = `${((100 * seconds) / longest).toFixed(2)}%`;
        return bar;
      }));
    },
  };
}

function notes({ phases }) {
  const said = [];
  for (const { phase, missing, failed, excluded, skipped } of phases) {
    if (skipped) said.push(`${format.spoken(phase)} skipped: ${skipped}`);
    if (missing.length > 0) said.push(`${format.spoken(phase)} missed by ${format.names(missing)}`);
    for (const [reasons, what] of [[failed, "failed"], [excluded, "does not count"]]) {
      const some = Object.entries(reasons).slice(0, MOST_REASONS);
      said.push(...some.map(([client, why]) => `${client} ${what}: ${why}`));
    }
  }
  return said.join("; ") || "–";
}
