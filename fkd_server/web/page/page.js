// Ties what the coordinator says to the parts of the page; knows neither the network nor how anything looks.

import { Accuracy } from "./accuracy.js";
import { Clients } from "./clients.js";
import { Coverage } from "./coverage.js";
import { Events } from "./events.js";
import { Live } from "./live.js";
import { Now } from "./now.js";
import { Rounds } from "./rounds.js";
import { Traffic } from "./traffic.js";
import { Unknowns } from "./unknowns.js";

const stale = new Set();

const live = new Live((kind) => {
  if (stale.size === 0) requestAnimationFrame(draw); // no frames, and so no work, in a hidden tab
  stale.add(kind);
});

const parts = [
  [new Unknowns(live), ["status", "rounds", "events", "connection"]], // the others know more
  [new Now(live), ["status", "rounds", "connection"]],
  [new Clients(live), ["status"]],
  [new Accuracy(live), ["status", "rounds"]],
  [new Traffic(live), ["status"]],
  [new Coverage(live), ["status", "rounds"]],
  [new Rounds(live), ["rounds"]],
  [new Events(live), ["events"]],
];

function draw() {
  const told = (kind) => stale.has(kind) && (live.status !== null || kind === "connection");
  const due = parts.filter(([, kinds]) => kinds.some(told));
  stale.clear();
  for (const [part] of due) part.draw();
}

live.follow();
