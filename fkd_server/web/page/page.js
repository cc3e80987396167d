// Ties what the coordinator says to the parts of the page; knows neither the network nor how anything looks.

import { Accuracy } from "./accuracy.js";
import { Clients } from "./clients.js";
import { Coverage } from "./coverage.js";
import { Events } from "./events.js";
import { Live } from "./live.js";
import { Now } from "./now.js";
import { Rounds } from "./rounds.js";
import { Traffic } from "./traffic.js";

const MANY_CLIENTS = 200;
const CALM_MS = 1000; // between redraws where there are many
const LEDGER_MS = 5000;

const stale = new Set();
let timer = null;
let drawnAt = 0;

const live = new Live((kind) => {
  stale.add(kind);
  if (timer !== null) return;
  const many = (live.status?.clients.length ?? 0) > MANY_CLIENTS;
  const wait = many ? Math.max(0, CALM_MS - (performance.now() - drawnAt)) : 0;
  timer = setTimeout(() => requestAnimationFrame(draw), wait); // no frames, and so no work, in a hidden tab
});

const parts = [
  [new Now(live), ["status", "rounds", "connection"]],
  [new Clients(live), ["status"]],
  [new Accuracy(live), ["status", "rounds"]],
  [new Traffic(live), ["status", "ledger"]],
  [new Coverage(live), ["status", "rounds"]],
  [new Rounds(live), ["rounds"]],
  [new Events(live), ["events", "connection"]],
];

function draw() {
  const kinds = new Set(stale);
  stale.clear();
  timer = null;
  drawnAt = performance.now();
  for (const [part, drawnFor] of parts) {
    if (
      live.status === null
        ? drawnFor.includes("connection") && kinds.has("connection")
        : drawnFor.some((kind) => kinds.has(kind))
    )
      part.draw(kinds);
  }
}

let added = 0; // bytes that are in the sums by phase
setInterval(() => {
  const { status, connection } = live;
  if (connection.state !== "live" || document.hidden || !live.ledgerIsSmall()) return;
  const moved = status.bytes.payload_up + status.bytes.payload_down;
  if (moved === added) return;
  added = moved;
  live.readLedger().catch(() => {
    added = 0;
  }); // the stream notices a lost coordinator
}, LEDGER_MS);

live.follow();
