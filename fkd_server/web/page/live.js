// What the coordinator says, as it says it: asks, follows the stream, reconnects; draws nothing.

const KEPT_EVENTS = 1000;
const EVENTS_PAGE = 200;
const ROUNDS_PAGE = 100;
const LEDGER_PAGE = 1000;
const SILENT_MS = 15_000; // a status is promised every 5 s
const FIRST_WAIT_MS = 1000;
const LAST_WAIT_MS = 8000;
const SCORES_MAY_LAG = 20; // rounds whose accuracy may have come while the stream was broken
const SMALL_LEDGER = 1000; // clients x rounds up to which it is read without being asked for

/** The state of the page: replaced by what arrives, and told to whoever listens. */
export class Live {
  /** `changed(kind)`: "status", "rounds", "events", "ledger" or "connection". */
  constructor(changed) {
    this.changed = changed;
    this.status = null;
    this.statusAt = 0; // performance.now() of its arrival
    this.heardAt = null; // Date of the last word
    this.rounds = new Map(); // by number
    this.events = []; // oldest first
    this.phases = null; // bytes by phase, once the ledger was read
    this.connection = { state: "connecting", detail: "" };
    this.seen = new Set();
    this.lastEvent = 0;
    this.readingLedger = false;
  }

  /** Follows the coordinator until the page is closed. */
  async follow() {
    for (let wait = FIRST_WAIT_MS; ; wait = Math.min(1.6 * wait, LAST_WAIT_MS)) {
      try {
        await this.listen(() => {
          wait = FIRST_WAIT_MS;
        });
      } catch (error) {
        this.connect("lost", error.message);
      }
      try {
        await get("api/status"); // a stream does not tell why it ended; this does
      } catch (error) {
        this.connect("lost", error.message);
      }
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
      let heard = performance.now(),
        caughtUp = false;
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
        this.catchUp().catch((error) => broken(error.message));
      });
      on("unready", ({ detail }) => this.connect("unready", detail));
      on("round", (round) => this.takeRounds([round]));
      on("log", (event) => this.takeEvents([event]));
      stream.onerror = () => broken("the connection broke");
    });
  }

  async catchUp() {
    for (let first = Math.max(0, Math.max(-1, ...this.rounds.keys()) - SCORES_MAY_LAG); ;) {
      const { rounds } = await get(`api/rounds?first=${first}`);
      this.takeRounds(rounds);
      if (rounds.length < ROUNDS_PAGE) break;
      first = rounds.at(-1).round + 1;
    }
    for (let after = this.lastEvent; ;) {
      const { events } = await get(`api/events?after=${after}`);
      this.takeEvents(events);
      if (events.length < EVENTS_PAGE) break;
      after = events.at(-1).number;
    }
    if (this.ledgerIsSmall()) await this.readLedger();
  }

  takeStatus(status) {
    const before = this.status;
    if (before !== null) {
      if (before.run_id !== status.run_id || before.version !== status.version) return void location.reload();
      if (status.serving_s < before.serving_s) this.lastEvent = 0; // another process, which counts anew
    }
    this.status = status;
    this.statusAt = performance.now();
    this.heardAt = new Date();
    this.changed("status");
  }

  takeRounds(rounds) {
    for (const round of rounds) this.rounds.set(round.round, round);
    if (rounds.length > 0) this.changed("rounds");
  }

  takeEvents(events) {
    const fresh = events.filter((event) => !this.seen.has(`${event.number} ${event.time}`));
    if (fresh.length === 0) return;
    for (const event of fresh) {
      this.seen.add(`${event.number} ${event.time}`);
      this.lastEvent = Math.max(this.lastEvent, event.number);
    }
    this.events.push(...fresh);
    this.events.sort((one, other) => one.time.localeCompare(other.time) || one.number - other.number);
    for (const event of this.events.splice(0, this.events.length - KEPT_EVENTS)) {
      this.seen.delete(`${event.number} ${event.time}`);
    }
    this.changed("events");
  }

  /** Rounds in order. */
  inOrder() {
    return [...this.rounds.values()].sort((one, other) => one.round - other.round);
  }

  ledgerIsSmall() {
    return this.status.clients.length * (this.status.rounds_done + 1) <= SMALL_LEDGER;
  }

  /** Adds up the ledger by phase. */
  async readLedger() {
    if (this.readingLedger) return;
    this.readingLedger = true;
    try {
      const phases = new Map();
      for (let offset = 0; ; offset += LEDGER_PAGE) {
        const { rows } = await get(`api/ledger?offset=${offset}`);
        for (const { phase, bytes } of rows) {
          const sum = phases.get(phase) ?? { payload_up: 0, payload_down: 0 };
          sum.payload_up += bytes.payload_up;
          sum.payload_down += bytes.payload_down;
          phases.set(phase, sum);
        }
        if (rows.length < LEDGER_PAGE) break;
      }
      this.phases = phases;
      this.changed("ledger");
    } finally {
      this.readingLedger = false;
    }
  }
}

async function get(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" }, cache: "no-store" }).catch(
    () => {
      throw new Error("it cannot be reached");
    },
  );
  if (answer.ok) return answer.json();
  if (answer.status === 401) {
    location.assign("login");
    return new Promise(() => {}); // the page is left
  }
  const { error } = await answer.json().catch(() => ({}));
  throw new Error(error ?? `the coordinator answered ${answer.status}`);
}
