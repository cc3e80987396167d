// Bytes: by phase, by client, and against what full models would have cost.

import { byId, Children, element, fill, named, say } from "./dom.js";
import * as format from "./format.js";

const MOST_CLIENTS = 8;
const ORDER = ["setup", "control", "student", "residuals", "moments", "votes", "personal"];

const total = ({ payload_up: up, payload_down: down }) => up + down;

/** The bytes' section. */
export class Traffic {
  constructor(live) {
    this.live = live;
    this.compared = new Bars("fedavg-bars");
    this.phases = new Bars("phase-bytes");
    this.clients = new Bars("client-bytes");
    byId("read-ledger").addEventListener("click", () => {
      byId("read-ledger").disabled = true;
      live
        .readLedger()
        .catch(() => {})
        .finally(() => {
          byId("read-ledger").disabled = false;
        });
    });
  }

  draw(kinds) {
    const { status, phases } = this.live;
    this.compare(status);
    byId("ledger-offer").hidden = this.live.ledgerIsSmall();
    if (phases !== null && kinds.has("ledger")) {
      const order = (name) =>
        (ORDER.indexOf(name.split("_")[0]) + 1 || ORDER.length + 1) + (name.includes("_") ? 0.5 : 0);
      this.phases.show(
        [...phases]
          .filter(([, sum]) => total(sum) > 0)
          .sort((one, other) => order(one[0]) - order(other[0]))
          .map(([name, sum]) => ({ name: name.replaceAll("_", " "), ...sum })),
      );
    }
    byId("phase-bytes-none").hidden = this.phases.rows.kept.size > 0 || !this.live.ledgerIsSmall();
    byId("client-bytes-none").hidden = status.clients.length > 0;
    const most = [...status.clients]
      .sort((one, other) => total(other.bytes) - total(one.bytes))
      .slice(0, MOST_CLIENTS);
    most.sort((one, other) => (one.name < other.name ? -1 : 1)); // a steady order, so that rows do not dance
    this.clients.show(most.map(({ name, bytes }) => ({ name, ...bytes })));
    const { bytes, clients } = status,
      hidden = clients.length - most.length;
    say(
      byId("bytes-note"),
      (hidden > 0
        ? `The ${MOST_CLIENTS} busiest of ${format.count(clients.length)}; all are in the table below. `
        : "") +
        `Tensor data; as whole messages ${format.bytes(bytes.message_up)} up and ${format.bytes(bytes.message_down)} down, of which ` +
        `${format.bytes(bytes.wasted)} for refused or repeated calls.`,
    );
  }

  compare({ bytes, fedavg_bytes: full }) {
    const used = total(bytes),
      times = (ratio) => `${ratio.toFixed(ratio < 9.95 ? 1 : 0)} times`;
    const relation = used <= full ? `${times(full / used)} less than` : `${times(used / full)} as much as`;
    say(
      byId("fedavg"),
      full === 0 || used === 0
        ? "Once students have come in, this compares the run with federated averaging of full models."
        : `${format.bytes(used)} of tensors so far, ${relation} the ${format.bytes(full)} of averaging full models (FedAvg) ` +
            "for the same participations.",
    );
    this.compared.show([
      { name: "this run", payload_up: bytes.payload_up, payload_down: bytes.payload_down },
      { name: "full models", payload_up: full / 2, payload_down: full / 2 },
    ]);
  }
}

/** Rows of a name, a bar of two parts and what it adds up to; all of a group have one scale. */
class Bars {
  constructor(id) {
    this.rows = new Children(byId(id), (row) => row.name, bar);
  }

  show(rows) {
    const longest = Math.max(1, ...rows.map(total));
    this.rows.show(rows.map((row) => ({ ...row, longest })));
  }
}

function bar({ name }) {
  const up = element("i", { class: "up" }),
    down = element("i", { class: "down" }),
    sum = element("span", { class: "number" });
  const said = element("span", { class: "unseen" });
  return {
    element: element(
      "p",
      { class: "bar-row" },
      element("span", { class: "name", title: name }, named(name)),
      element("span", { class: "track", "aria-hidden": "true" }, up, down),
      sum,
      said,
    ),
    update(row) {
      fill(up, row.payload_up / row.longest);
      fill(down, row.payload_down / row.longest);
      say(sum, format.bytes(total(row)));
      say(said, `: ${format.bytes(row.payload_up)} up, ${format.bytes(row.payload_down)} down`);
    },
  };
}
