// What the coordinator says, as it says it: asks, follows the stream, reconnects; draws nothing.

const KEPT_EVENTS = 1000;
const EVENTS_PAGE = 200;
const ROUNDS_PAGE = 100;
const SILENT_MS = 15_000; // a status is promised every 5 s
const FIRST_WAIT_MS = 500;
const LAST_WAIT_MS = 8000;
const SCORES_MAY_LAG = 20; // rounds whose accuracy may have come while the stream was broken

/** What an event is known by: numbers begin anew in each coordinator process. */
export const identity = ({ number, time }) => `${number} ${time}`;

/** The state of the page: replaced by what arrives, and told to whoever listens. */
export class Live {
  /** `changed(kind)`: "status", "rounds", "events" or "connection". */
  constructor(changed) {
    this.changed = changed;
    this.known = new Set(); // "status", "rounds", "events": what has been answered
    this.status = null;
    this.statusAt = 0; // performance.now() of its arrival
    this.heardAt = null; // Date of the last word
    this.rounds = new Map(); // by number
    this.events = []; // oldest first
    this.connection = { state: "connecting", detail: "" };
  }

  /** Follows the coordinator until the page is closed. */
  async follow() {
    this.connect("connecting");
    for (let wait = FIRST_WAIT_MS; ; wait = Math.min(1.6 * wait, LAST_WAIT_MS)) {
      const served = () => (wait = FIRST_WAIT_MS);
      await this.listen(served).catch((error) => this.connect("lost", error.message));
      // A stream does not tell why it ended; this does.
      await get("api/status").catch((error) => this.connect("lost", error.message));
      await new Promise((resolve) => setTimeout(resolve, wait * (0.8 + 0.4 * Math.random())));
    }
  }

  connect(state, detail = "") {
    this.connection = { state, detail };
    this.changed("connection");
  }

  /** Never resolves; rejects when the stream breaks or falls silent. */
  listen(served) {
    return new Promise((_, reject) => {
      const stream = new EventSource("api/stream");
      const told = new Map(); // rounds that the stream has told of
      let heard = performance.now(), caughtUp = false;
      const watch = setInterval(() => {
        if (performance.now() - heard > SILENT_MS) broken("the coordinator has fallen silent");
      }, 1000);
      const broken = (why) => {
        clearInterval(watch);
        stream.close(); // we reconnect ourselves: a browser gives up where the answer is not 200
        reject(new Error(why));
      };
      const on = (name, take) =>
        stream.addEventListener(name, (message) => {
          heard = performance.now();
          take(JSON.parse(message.data));
        });
      on("status", (status) => {
        this.takeStatus(status);
        if (this.connection.state !== "live") this.connect("live");
        if (caughtUp) return;
        caughtUp = true;
        served();
        this.catchUp(told).catch((error) => broken(error.message));
      });
      on("unready", ({ detail }) => this.connect("unready", detail));
      on("round", (round) => {
        told.set(round.round, round);
        this.takeRounds([round]);
      });
      on("log", (event) => this.takeEvents([event]));
      stream.onerror = () => broken("the connection broke");
    });
  }

  /** Asks for what happened while nobody told; what a stream tells meanwhile is newer than the answers. */
  async catchUp(told) {
    for (let first = Math.max(0, Math.max(-1, ...this.rounds.keys()) - SCORES_MAY_LAG); ;) {
      const { rounds } = await get(`api/rounds?first=${first}`);
      this.takeRounds(rounds.map((round) => told.get(round.round) ?? round));
      if (rounds.length < ROUNDS_PAGE) break;
      first = rounds.at(-1).round + 1;
    }
    this.know("rounds");
    const kept = [];
    for (let after = 0; ;) {
      const { events } = await get(`api/events?after=${after}`);
      kept.push(...events);
      if (events.length < EVENTS_PAGE) break;
      after = events.at(-1).number;
    }
    this.takeEvents(kept);
    this.know("events");
  }

  know(kind) {
    this.known.add(kind);
    this.changed(kind);
  }

  takeStatus(status) {
    const { run_id: run, version } = this.status ?? status;
    if (run !== status.run_id || version !== status.version) return void location.reload();
    this.status = status;
    this.statusAt = performance.now();
    this.heardAt = new Date();
    this.know("status");
  }

  takeRounds(rounds) {
    for (const round of rounds) this.rounds.set(round.round, round);
    if (rounds.length > 0) this.changed("rounds");
  }

  takeEvents(events) {
    const all = new Map([...this.events, ...events].map((event) => [identity(event), event]));
    if (all.size === this.events.length) return;
    this.events = [...all.values()]
      .sort((one, other) => one.time.localeCompare(other.time) || one.number - other.number)
      .slice(-KEPT_EVENTS);
    this.changed("events");
  }

  inOrder() {
    return [...this.rounds.values()].sort((one, other) => one.round - other.round);
  }
}

async function get(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } }).catch(() => {
    throw new Error("it cannot be reached");
  });
  if (answer.ok) return answer.json();
  if (answer.status === 401) {
    location.assign("login");
    return new Promise(() => {}); // the page is left
  }
  const { error } = await answer.json().catch(() => ({}));
  throw new Error(error ?? `the coordinator answered ${answer.status}`);
}
