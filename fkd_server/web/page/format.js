// Numbers, bytes and times as people read them; knows no elements.

const THIN = "\u202f"; // narrow no-break space, as SI wants it
const BYTES = ["B", "kB", "MB", "GB", "TB", "PB"];
const TIMES = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** 1234567 as "1.23 MB". */
export function bytes(count) {
  let value = count, unit = 0;
  for (; value >= 999.5 && unit < BYTES.length - 1; unit += 1) value /= 1000;
  const digits = unit === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${value.toFixed(digits)}${THIN}${BYTES[unit]}`;
}

/** 1234567 as "1 234 567". */
export const count = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, THIN);

/** At most four characters: 1234567 as "1.2M". */
export function short(value) {
  if (value < 10_000) return String(value);
  const [scaled, unit] = value < 999_500 ? [value / 1e3, "k"] : [value / 1e6, "M"];
  return `${scaled.toFixed(scaled < 9.95 ? 1 : 0)}${unit}`;
}

/** 0.9861 as "98.6 %". */
export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}${THIN}%`;

/** "1 client", "3 clients". */
export const several = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;

/** 252 as "4 min 12 s". */
export function duration(seconds) {
  if (seconds < 9.95) return `${seconds.toFixed(1)}${THIN}s`;
  let left = Math.round(seconds);
  const largest = TIMES.findIndex(([size]) => left >= size);
  return TIMES.slice(largest, largest + 2).map(([size, unit]) => {
    const whole = Math.floor(left / size);
    left -= whole * size;
    return `${whole}${THIN}${unit}`;
  }).join(" ");
}

/** As duration, in whole seconds: for what changes every second. */
export const countdown = (seconds) => (seconds < 60 ? `${Math.ceil(seconds)}${THIN}s` : duration(seconds));

/** The time of day here. */
export const clock = (date) => date.toTimeString().slice(0, 8);

/** At most `most` names, and how many more there are. */
export function names(all, most = 5) {
  const more = all.length - most;
  return more > 0 ? `${all.slice(0, most).join(", ")} and ${more} more` : all.join(", ");
}

/** "4 clients, all alive", or "4 clients, 2 alive, 1 left, 1 gone". */
export function presence(clients) {
  const counts = { alive: 0, left: 0, gone: 0 };
  for (const { state } of clients) counts[state in counts ? state : "alive"] += 1;
  const told = Object.entries(counts).filter(([, number]) => number > 0)
    .map(([word, number]) => `${number > 1 && number === clients.length ? "all" : count(number)} ${word}`);
  return [several(clients.length, "client"), ...told].join(", ");
}

/** "personal_model" as "personal model". */
export const spoken = (name) => name.replaceAll("_", " ");

/** Of "refine_3" the "refine": steps of a kind are one to the eye. */
export const kind = (phase) => phase.split("_")[0];

/** A candidate of the vote as the chart calls it: what corrects the student's answers is added to it. */
export const candidate = (name) => (name === "anchors" || name === "moments" ? `+ ${name}` : name);
