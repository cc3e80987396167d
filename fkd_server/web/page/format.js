// Numbers, bytes and times as people read them; knows no elements.

const THIN = "\u202f"; // narrow no-break space, as SI wants it

/** 1234567 as "1.23 MB". */
export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let value = count,
    unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const digits = unit === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${value.toFixed(digits)}${THIN}${units[unit]}`;
}

/** 1234567 as "1 234 567". */
export function count(value) {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+(?!\d))/g, THIN);
}

/** At most four characters: 1234567 as "1.2M". */
export function short(value) {
  if (value < 10_000) return String(value);
  const [scaled, unit] = value < 999_500 ? [value / 1e3, "k"] : [value / 1e6, "M"];
  return `${scaled.toFixed(scaled < 9.95 ? 1 : 0)}${unit}`;
}

/** 0.9861 as "98.6 %". */
export function percent(share, digits = 1) {
  return `${(100 * share).toFixed(digits)}${THIN}%`;
}

/** "1 client", "3 clients". */
export function several(number, what) {
  return `${count(number)} ${what}${number === 1 ? "" : "s"}`;
}

/** 252 as "4 min 12 s". */
export function duration(seconds) {
  if (seconds < 9.95) return `${seconds.toFixed(1)}${THIN}s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole}${THIN}s`;
  const parts =
    whole < 3600
      ? [
          [Math.floor(whole / 60), "min"],
          [whole % 60, "s"],
        ]
      : whole < 86_400
        ? [
            [Math.floor(whole / 3600), "h"],
            [Math.floor(whole / 60) % 60, "min"],
          ]
        : [
            [Math.floor(whole / 86_400), "d"],
            [Math.floor(whole / 3600) % 24, "h"],
          ];
  return parts.map(([value, unit]) => `${value}${THIN}${unit}`).join(" ");
}

/** As duration, in whole seconds: for what changes every second. */
export function countdown(seconds) {
  return seconds < 60 ? `${Math.ceil(seconds)}${THIN}s` : duration(seconds);
}

/** The time of day here. */
export function clock(date) {
  return [date.getHours(), date.getMinutes(), date.getSeconds()]
    .map((n) => String(n).padStart(2, "0"))
    .join(":");
}

/** At most `most` names, and how many more there are. */
export function names(all, most = 5) {
  const more = all.length - most;
  return more > 0 ? `${all.slice(0, most).join(", ")} and ${more} more` : all.join(", ");
}

/** A candidate of the vote as the chart calls it: "student", "+ anchors", "+ moments" or "published". */
export function candidate(name) {
  const kind = kindOf(name);
  return kind === "anchors" || kind === "moments" ? `+ ${kind}` : kind;
}

/** Candidates that differ only in a strength ("moments.3") are of one kind. */
export function kindOf(name) {
  return name.split(".")[0];
}
