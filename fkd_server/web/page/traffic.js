// Bytes: by phase, by client, and against what full models would have cost.

import { byId, Children, element, fill, named, say } from "./dom.js";
import * as format from "./format.js";

const MOST_CLIENTS = 8;
const KINDS = ["setup", "control", "student", "residuals", "moments", "refine", "votes", "exchange", "personal"];

const total = ({ payload_up: up, payload_down: down }) => up + down;
const byName = (one, other) => (one.name < other.name ? -1 : 1);

/** The bytes' section. */
export class Traffic {
  constructor(live) {
    this.live = live;
    this.compared = new Bars("fedavg-bars");
    this.phases = new Bars("phase-bytes");
    this.clients = new Bars("client-bytes");
  }

  draw() {
    const { bytes, clients, bytes_by_phase: byPhase, fedavg_bytes: full } = this.live.status;
    this.compare(bytes, full);
    const phases = KINDS.map((name) => {
      const all = Object.keys(byPhase).filter((phase) => format.kind(phase) === name);
      const sum = (way) => all.reduce((bytes, phase) => bytes + byPhase[phase][way], 0);
      return { name, payload_up: sum("payload_up"), payload_down: sum("payload_down") };
    });
    this.phases.show(phases.filter((phase) => total(phase) > 0));
    const busiest = clients.map(({ name, bytes }) => ({ name, ...bytes }))
      .sort((one, other) => total(other) - total(one))
      .slice(0, MOST_CLIENTS);
    this.clients.show(busiest.sort(byName)); // so that rows do not dance
    const some = clients.length > MOST_CLIENTS
      ? `The ${MOST_CLIENTS} busiest of ${format.count(clients.length)}; the table below has all. ` : "";
    say(
      byId("bytes-note"),
      `${some}Tensor data; as whole messages ${format.bytes(bytes.message_up)} up and ` +
        `${format.bytes(bytes.message_down)} down, of which ${format.bytes(bytes.wasted)} for refused or ` +
        "repeated calls.",
    );
  }

  compare(bytes, full) {
    const used = total(bytes), times = (ratio) => `${ratio.toFixed(ratio < 9.95 ? 1 : 0)} times`;
    const relation = used <= full ? `${times(full / used)} less than` : `${times(used / full)} as much as`;
    say(
      byId("fedavg"),
      full === 0 || used === 0
        ? "Once students have come in, this compares the run with federated averaging of full models."
        : `${format.bytes(used)} of tensors so far, ${relation} the ${format.bytes(full)} of averaging full ` +
            "models (FedAvg) for the same participations.",
    );
    this.compared.show([
      { name: "this run", ...bytes },
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
  const up = element("i.up"), down = element("i.down"), sum = element("span.number"), said = element("span.unseen");
  return {
    element: element("p.bar-row",
      element("span.name", { title: name }, named(name)),
      element("span.track", { "aria-hidden": "true" }, up, down),
      sum, said),
    update(row) {
      fill(up, row.payload_up / row.longest);
      fill(down, row.payload_down / row.longest);
      say(sum, format.bytes(total(row)));
      say(said, `: ${format.bytes(row.payload_up)} up, ${format.bytes(row.payload_down)} down`);
    },
  };
}
