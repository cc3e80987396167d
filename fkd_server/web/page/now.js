// The bar and the tiles: where the run stands this second.

import { badge, byId, fill, say } from "./dom.js";
import * as format from "./format.js";

const STATES = {
  gathering: ["wait", "Gathering clients", "info"],
  running: ["play", "Running", "good"],
  paused: ["pause", "Paused", "warn"],
  completed: ["check", "Completed", "good"],
  aborted: ["cross", "Aborted", "bad"],
};
const PACE = 5; // the last rounds tell how long the next ones take

const isOver = (status) => status.state === "completed" || status.state === "aborted";

/** Bar, strip and tiles. */
export class Now {
  constructor(live) {
    this.live = live;
    this.answers = ""; // of the open phase
    setInterval(() => this.tick(), 1000);
  }

  draw() {
    const { status, connection } = this.live;
    badge(byId("connection"), ...this.link(connection, status));
    document.body.toggleAttribute("data-stale", connection.state !== "live");
    if (status === null) {
      const preparing = connection.state === "unready";
      badge(byId("state"), ...(preparing ? ["busy", "Preparing", "quiet"] : ["wait", "Unknown", "quiet"]));
      badge(byId("strip"), "wait", connection.detail || "Asking the coordinator…", "quiet");
      return;
    }
    const shown = status.paused && !isOver(status) ? "paused" : status.state;
    const state = STATES[shown] ?? ["wait", shown, "quiet"];
    badge(byId("state"), ...state);
    badge(byId("strip"), ...this.standing(status, connection));
    say(byId("run-id"), status.run_id);
    document.title = `${status.round >= 0 ? `${status.round}/${status.rounds} ` : ""}${state[1]} – ${status.run_id}`;
    say(byId("build"), `FKD ${status.version}, configuration ${status.config_sha256.slice(0, 12)}.`);
    this.round(status);
    this.phase(status);
    this.model(status);
    this.moved(status);
  }

  /** How the connection is: icon, words, tone. */
  link({ state }, status) {
    if (state === "live") return ["check", "Live", "good"];
    if (state === "connecting") return ["wait", "Connecting…", "quiet"];
    if (state === "unready") return ["wait", "Not serving", "quiet"];
    return status !== null && isOver(status)
      ? ["left", "Coordinator stopped", "quiet"]
      : ["bang", "Reconnecting…", "warn"];
  }

  /** Where the run stands: icon, words, tone. */
  standing(status, { state, detail }) {
    const since = format.clock(this.live.heardAt), said = status.waiting_for;
    if (state === "lost" && isOver(status))
      return ["info", `${said}. The coordinator has stopped; the figures are from ${since}.`, "quiet"];
    if (state === "lost") return ["bang", `No word since ${since}: ${detail}. Trying again…`, "warn"];
    if (state === "unready") return ["bang", `No news since ${since}: ${detail}`, "warn"];
    if (isOver(status)) return [STATES[status.state][0], said, STATES[status.state][2]];
    return status.paused ? ["pause", said, "warn"] : ["clock", said, "quiet"];
  }

  round(status) {
    const rounds = this.live.inOrder(), recent = rounds.slice(-PACE);
    const done = Math.max(0, status.rounds_done - (this.live.rounds.has(0) ? 1 : 0));
    const left = Math.max(0, status.rounds - done);
    say(byId("round"), status.round < 0 ? `– of ${status.rounds}` : `${status.round} of ${status.rounds}`);
    fill(byId("round-meter"), status.state === "completed" ? 1 : done / status.rounds);
    let note = `${done} done`;
    if (recent.length > 0) {
      const pace = recent.reduce((sum, { seconds }) => sum + seconds, 0) / recent.length;
      note += `, about ${format.duration(pace)} each`;
      if (left > 0 && !isOver(status) && !status.paused) note += `; ${format.duration(pace * left)} left at that pace`;
    }
    say(byId("round-note"), status.round < 0 ? "before the first round" : note);
  }

  phase(status) {
    const { participants, answered, min_clients: needed } = status;
    const ready = status.clients.filter((client) => client.ready).length;
    const [title, figure, share, note] = status.state === "gathering"
      ? ["Clients ready", `${ready} of ${needed}`, ready / needed,
          `the first round waits for ${format.several(needed, "client")}`]
      : ["Open phase", format.spoken(status.phase) || "none", answered.length / participants.length,
          `${answered.length} of ${participants.length} answers in`];
    say(byId("phase-title"), title);
    say(byId("phase"), figure);
    fill(byId("phase-meter"), share);
    const between = status.phase === "" && status.state === "running";
    this.answers = isOver(status) ? "the run is over" : between ? "between phases" : note;
    this.tick();
  }

  tick() {
    const { status, statusAt, connection } = this.live;
    if (status === null) return;
    let due = "";
    if (status.deadline_s !== null && !isOver(status) && connection.state === "live") {
      const left = status.deadline_s - (performance.now() - statusAt) / 1000;
      due = left > 0 ? `; closes in ${format.countdown(left)} at the latest` : "; closes now";
    }
    say(byId("phase-note"), this.answers + due);
  }

  model({ model }) {
    byId("export").toggleAttribute("data-off", model === null);
    if (model === null) return say(byId("model"), "none yet");
    const scores = this.live.rounds.get(model.round)?.accuracy ?? {};
    const accuracy = scores.published ?? scores[model.published];
    const scored = accuracy === undefined ? "" : `, ${format.percent(accuracy)} on the test set`;
    say(byId("model"), format.candidate(model.published));
    say(byId("model-note"), `after round ${model.round}${scored}; ${model.sha256.slice(0, 12)}`);
    byId("model-note").title = `SHA-256 ${model.sha256}`;
  }

  moved({ bytes: { payload_up: up, payload_down: down }, clients }) {
    say(byId("moved"), format.bytes(up + down));
    say(byId("moved-note"), `${format.bytes(up)} up, ${format.bytes(down)} down; ${format.presence(clients)}`);
  }
}
