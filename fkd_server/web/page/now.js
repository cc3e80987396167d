// The bar and the tiles: where the run stands this second.

import { badge, byId, fill, mark, say } from "./dom.js";
import * as format from "./format.js";

const STATES = {
  unknown: ["dots", "Unknown", "quiet"],
  preparing: ["gear", "Preparing", "quiet"],
  gathering: ["dots", "Gathering clients", "info"],
  running: ["play", "Running", "good"],
  paused: ["pause", "Paused", "warn"],
  completed: ["check", "Completed", "good"],
  aborted: ["cross", "Aborted", "bad"],
};
const PACE = 5; // the last rounds tell how long the next ones take

/** Whether a run has ended. */
export const isOver = (status) => status.state === "completed" || status.state === "aborted";

/** Bar, strip and tiles. */
export class Now {
  constructor(live) {
    this.live = live;
    setInterval(() => this.tick(), 1000);
  }

  draw() {
    const { status, connection } = this.live;
    this.connection(connection, status);
    if (status === null) return;
    const shown = status.paused && !isOver(status) ? "paused" : status.state;
    badge(byId("state"), ...(STATES[shown] ?? ["dots", shown, "quiet"]));
    say(byId("run-id"), status.run_id);
    document.title = `${status.round >= 0 ? `${status.round}/${status.rounds} ` : ""}${STATES[shown]?.[1] ?? shown} – ${status.run_id}`;
    say(byId("build"), `FKD ${status.version}, configuration ${status.config_sha256.slice(0, 12)}.`);
    badge(byId("strip"), ...this.standing(status, connection));
    this.round(status);
    this.phase(status);
    this.model(status);
    this.moved(status);
  }

  connection({ state, detail }, status) {
    const ended = status !== null && isOver(status);
    const [symbol, text, tone] = {
      connecting: ["dots", "Connecting…", "quiet"],
      live: ["check", "Live", "good"],
      unready: ["dots", "Not serving", "quiet"],
      lost: ended ? ["gone", "Coordinator stopped", "quiet"] : ["bang", "Reconnecting…", "warn"],
    }[state];
    badge(byId("connection"), symbol, text, tone);
    document.body.toggleAttribute("data-stale", state !== "live");
    if (status !== null) return;
    badge(byId("state"), ...(state === "unready" ? STATES.preparing : STATES.unknown));
    badge(byId("strip"), "dots", detail || "Asking the coordinator…", "quiet");
  }

  /** What the strip shows: icon, words, tone. */
  standing(status, { state, detail }) {
    const since = format.clock(this.live.heardAt);
    if (state === "lost" && isOver(status)) {
      return [
        "info",
        `${status.waiting_for}. The coordinator has stopped; the figures are from ${since}.`,
        "quiet",
      ];
    }
    if (state === "lost") return ["bang", `No word since ${since}: ${detail}. Trying again…`, "warn"];
    if (state === "unready") return ["bang", `No news since ${since}: ${detail}`, "warn"];
    if (status.state === "aborted") return ["cross", status.waiting_for, "bad"];
    if (status.state === "completed") return ["check", status.waiting_for, "good"];
    if (status.paused) return ["pause", status.waiting_for, "warn"];
    return ["clock", status.waiting_for, "quiet"];
  }

  round(status) {
    const rounds = this.live.inOrder(),
      done = Math.max(0, status.rounds_done - (this.live.rounds.has(0) ? 1 : 0));
    say(byId("round"), status.round < 0 ? `– of ${status.rounds}` : `${status.round} of ${status.rounds}`);
    fill(byId("round-meter"), status.state === "completed" ? 1 : done / status.rounds);
    const recent = rounds.slice(-PACE),
      pace = recent.reduce((sum, round) => sum + round.seconds, 0) / recent.length;
    const left = Math.max(0, status.rounds - done);
    let note = `${done} done`;
    if (recent.length > 0) note += `, about ${format.duration(pace)} each`;
    if (recent.length > 0 && left > 0 && !isOver(status) && !status.paused)
      note += `; ${format.duration(pace * left)} left at that pace`;
    say(byId("round-note"), status.round < 0 ? "before the first round" : note);
  }

  phase(status) {
    const gathering = status.state === "gathering",
      asked = status.participants.length;
    const ready = status.clients.filter((client) => client.ready).length;
    say(byId("phase-title"), gathering ? "Clients ready" : "Open phase");
    say(
      byId("phase"),
      gathering ? `${ready} of ${status.min_clients}` : status.phase.replaceAll("_", " ") || "none",
    );
    fill(
      byId("phase-meter"),
      gathering ? ready / status.min_clients : asked ? status.answered.length / asked : 0,
    );
    this.answers = gathering
      ? `the first round waits for ${format.several(status.min_clients, "client")}`
      : isOver(status)
        ? "the run is over"
        : status.phase === ""
          ? "between phases"
          : `${status.answered.length} of ${asked} answers in`;
    this.tick();
  }

  tick() {
    const { status, statusAt, connection } = this.live;
    if (status === null || this.answers === undefined) return;
    const left =
      status.deadline_s === null ? null : status.deadline_s - (performance.now() - statusAt) / 1000;
    const due =
      left === null || isOver(status) || connection.state !== "live"
        ? ""
        : left > 0
          ? `; closes in ${format.countdown(left)} at the latest`
          : "; closes now";
    say(byId("phase-note"), this.answers + due);
  }

  model({ model }) {
    if (model === null) return;
    const scored = this.live.rounds.get(model.round),
      kind = format.kindOf(model.published);
    const accuracy = scored?.accuracy.published ?? scored?.accuracy[kind];
    say(byId("model"), format.candidate(kind));
    say(
      byId("model-note"),
      `after round ${model.round}` +
        (accuracy === undefined ? "" : `, ${format.percent(accuracy)} on the test set`) +
        `; ${model.sha256.slice(0, 12)}`,
    );
    mark(byId("model-note"), "title", `SHA-256 ${model.sha256}`);
  }

  moved({ bytes, clients }) {
    say(byId("moved"), format.bytes(bytes.payload_up + bytes.payload_down));
    const alive = clients.filter((client) => client.alive).length;
    say(
      byId("moved-note"),
      `${format.bytes(bytes.payload_up)} up, ${format.bytes(bytes.payload_down)} down; ` +
        `${alive} of ${format.several(clients.length, "client")} alive`,
    );
  }
}
