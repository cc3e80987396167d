// Rounds that are over: where the last ones spent their time, and all of them as a table.

import { byId, Children, element, say, table } from "./dom.js";
import * as format from "./format.js";

const LAST = 10;

const colour = (phase) => `phase-${phase.split("_")[0]}`;
const spoken = (phase) => phase.replaceAll("_", " ");

/** The timeline and its table. */
export class Rounds {
  constructor(live) {
    this.live = live;
    this.explained = ""; // the phases in the legend
    this.rows = new Children(byId("timeline"), (row) => row.round.round, timelineRow);
    byId("rounds-table")
      .closest("details")
      .addEventListener("toggle", () => this.drawTable());
  }

  draw() {
    const rounds = this.live.inOrder(),
      last = rounds.slice(-LAST).reverse();
    byId("timeline-none").hidden = rounds.length > 0;
    const longest = Math.max(0.001, ...last.map((round) => round.seconds));
    this.rows.show(last.map((round) => ({ round, longest })));
    const phases = [
      ...new Set(last.flatMap((round) => round.phases.map(({ phase }) => phase.split("_")[0]))),
    ];
    if (phases.join() !== this.explained) {
      this.explained = phases.join();
      byId("phase-legend").replaceChildren(
        ...phases.map((phase) => element("span", { class: `key ${colour(phase)}` }, phase)),
        "the rest is between phases",
      );
    }
    this.drawTable();
  }

  drawTable() {
    if (!byId("rounds-table").closest("details").open) return;
    const rounds = this.live.inOrder().reverse(),
      phases = [...new Set(rounds.flatMap((round) => round.phases.map(({ phase }) => phase)))];
    byId("rounds-table").replaceChildren(
      table(
        "Rounds, newest first",
        ["Round", "Seconds", ...phases.map((phase) => `${spoken(phase)}, s`), "Asked", "Published", "Notes"],
        rounds.map((round) => [
          String(round.round),
          round.seconds.toFixed(1),
          ...phases.map(
            (name) => round.phases.find(({ phase }) => phase === name)?.seconds.toFixed(1) ?? "–",
          ),
          String(round.cohort.length),
          round.published ? format.candidate(round.published) : "–",
          notes(round),
        ]),
        (column) => column <= phases.length + 2,
      ),
    );
  }
}

function timelineRow({ round: { round } }) {
  const track = element("span", { class: "track" }),
    sum = element("span", { class: "number" });
  let drawn = "";
  return {
    element: element(
      "p",
      { class: "bar-row" },
      element("span", { class: "name" }, `Round ${round}`),
      track,
      sum,
    ),
    update({ round: now, longest }) {
      say(sum, format.duration(now.seconds));
      const key = JSON.stringify([now.phases.map(({ phase, seconds }) => [phase, seconds]), longest]);
      if (key === drawn) return;
      drawn = key;
      track.replaceChildren(
        ...now.phases.map(({ phase, seconds }) => {
          const text = `${spoken(phase)} ${format.duration(seconds)}`;
          const made = element("i", { class: colour(phase), title: text }, element("span", {}, text));
          made.style.inlineSize = `${((100 * seconds) / longest).toFixed(2)}%`;
          return made;
        }),
      );
    },
  };
}

function notes(round) {
  const said = [];
  for (const { phase, missing, failed, excluded, skipped } of round.phases) {
    if (skipped) said.push(`${spoken(phase)} skipped: ${skipped}`);
    if (missing.length > 0) said.push(`${spoken(phase)} missed by ${format.names(missing)}`);
    for (const [client, why] of Object.entries(failed).slice(0, 3)) said.push(`${client} failed: ${why}`);
    for (const [client, why] of Object.entries(excluded).slice(0, 3))
      said.push(`${client} does not count: ${why}`);
  }
  return said.join("; ") || "–";
}
