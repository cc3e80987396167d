// Accuracy by round: lines told apart by dashes, marks and labels as well as by colour, and the same as a table.

import { byId, element, shape, table } from "./dom.js";
import * as format from "./format.js";

const KINDS = ["student", "anchors", "moments", "published"];
const EDGE = { top: 14, right: 92, bottom: 34, left: 46 };
const ENDS = [5, 10, 15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 500, 750, 1000];
const MANY_POINTS = 40;

/** The chart and its table. */
export class Accuracy {
  constructor(live) {
    this.live = live;
    this.measure = "accuracy";
    this.at = null; // index of the round looked at
    this.drawn = "";
    this.plot = byId("accuracy");
    byId("measures").addEventListener("change", (event) => {
      this.measure = event.target.value;
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => this.lookAt(this.nearest(event.clientX)));
    this.plot.addEventListener("pointerleave", () => this.lookAt(null));
  }

  draw() {
    if (this.live.status === null || this.plot.clientWidth === 0) return;
    const scored = { accuracy: this.points("accuracy"), validation: this.points("validation") };
    const both = scored.accuracy.length > 0 && scored.validation.length > 0;
    byId("measures").toggleAttribute("data-off", !both);
    const measure =
      scored[this.measure].length > 0 ? this.measure : scored.accuracy.length > 0 ? "accuracy" : "validation";
    const points = scored[measure],
      { rounds } = this.live.status;
    const drawn = JSON.stringify([measure, points, rounds, this.plot.clientWidth, this.plot.clientHeight]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const where = measure === "accuracy" ? "on the coordinator's test set" : "on the sites' held-out samples";
    if (points.length === 0) this.sayEmpty();
    else this.drawLines(points, rounds, where);
    byId("accuracy-table").replaceChildren(
      table(
        `Accuracy ${where}, by round`,
        ["Round", ...KINDS.map(format.candidate)],
        points.map((point) => [String(point.round), ...KINDS.map((kind) => shown(point[kind]))]),
        () => true,
      ),
    );
  }

  /** One object per scored round: of candidates of one kind the best, which is the one that a vote would choose. */
  points(measure) {
    return this.live
      .inOrder()
      .filter((round) => Object.keys(round[measure]).length > 0)
      .map((round) => {
        const point = { round: round.round };
        for (const [name, value] of Object.entries(round[measure])) {
          const kind = format.kindOf(name);
          point[kind] = Math.max(point[kind] ?? 0, value);
        }
        if (round.published !== "" && point.published === undefined)
          point.published = round[measure][round.published];
        return point;
      });
  }

  sayEmpty() {
    this.plot.replaceChildren(
      element(
        "p",
        { class: "empty" },
        "No round has been scored yet: with a test set every round is, and the sites' held-out samples are counted in rounds with a vote.",
      ),
    );
  }

  drawLines(points, rounds, where) {
    const width = Math.max(280, this.plot.clientWidth),
      height = this.plot.clientHeight,
      last = points.at(-1).round,
      first = Math.min(1, points[0].round);
    const end = Math.max(2, Math.min(Math.max(rounds, last), ENDS.find((value) => value >= last) ?? rounds));
    const values = points
      .flatMap((point) => KINDS.map((kind) => point[kind]))
      .filter((value) => value !== undefined);
    const low = Math.max(0, Math.floor(10 * Math.min(...values) - 0.3) / 10);
    const high = Math.max(low + 0.1, Math.ceil(10 * Math.max(...values)) / 10);
    const x = (round) => EDGE.left + ((width - EDGE.left - EDGE.right) * (round - first)) / (end - first);
    const y = (value) =>
      height - EDGE.bottom - ((height - EDGE.top - EDGE.bottom) * (value - low)) / (high - low);
    const series = KINDS.map((kind) => ({
      kind,
      dots: points.filter((point) => point[kind] !== undefined),
    })).filter(({ dots }) => dots.length > 0);
    const best = series
      .map(({ kind, dots }) => `${format.candidate(kind)} ${format.percent(dots.at(-1)[kind])}`)
      .join(", ");
    this.cursor = shape("line", {
      class: "cursor",
      y1: EDGE.top,
      y2: height - EDGE.bottom,
      visibility: "hidden",
    });
    const drawing = shape(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": "plot-title plot-text" },
      shape("title", { id: "plot-title" }, `Accuracy ${where}, by round`),
      shape("desc", { id: "plot-text" }, `Rounds ${points[0].round} to ${last}. Last: ${best}.`),
      ...axes({ x, y, first, end, low, high, width, height }),
      this.cursor,
      ...[...series].reverse().map(({ kind, dots }) => line(kind, dots, x, y)),
      ...labels(series, x, y, height),
    );
    this.tip = element("div", { class: "tip", hidden: "" });
    const slider = element("div", {
      class: "scrub",
      role: "slider",
      tabindex: "0",
      "aria-label": `Round to read accuracies ${where} of`,
      "aria-valuemin": points[0].round,
      "aria-valuemax": last,
      "aria-valuenow": last,
      "aria-valuetext": told(points.at(-1)),
    });
    slider.addEventListener("keydown", (event) => this.onKey(event));
    slider.addEventListener("focus", () => this.lookAt(this.at ?? points.length - 1));
    slider.addEventListener("blur", () => this.lookAt(null));
    const focused = this.plot.contains(document.activeElement);
    Object.assign(this, { shownPoints: points, x, slider });
    this.plot.replaceChildren(drawing, slider, this.tip);
    if (focused) slider.focus({ preventScroll: true });
  }

  onKey(event) {
    const last = this.shownPoints.length - 1,
      at = this.at ?? last;
    const to = {
      ArrowLeft: at - 1,
      ArrowDown: at - 1,
      ArrowRight: at + 1,
      ArrowUp: at + 1,
      Home: 0,
      End: last,
      PageUp: at + 10,
      PageDown: at - 10,
    }[event.key];
    if (event.key === "Escape") this.lookAt(null);
    if (to === undefined) return;
    event.preventDefault();
    this.lookAt(Math.min(last, Math.max(0, to)));
  }

  nearest(clientX) {
    if (this.shownPoints === undefined) return null;
    const at = clientX - this.plot.getBoundingClientRect().left;
    const gaps = this.shownPoints.map((point) => Math.abs(this.x(point.round) - at));
    return gaps.indexOf(Math.min(...gaps));
  }

  lookAt(index) {
    if (this.shownPoints === undefined) return;
    this.at = index;
    const point = this.shownPoints[index];
    this.tip.hidden = point === undefined;
    this.cursor.setAttribute("visibility", point === undefined ? "hidden" : "visible");
    if (point === undefined) return;
    const at = this.x(point.round);
    this.cursor.setAttribute("x1", at);
    this.cursor.setAttribute("x2", at);
    this.slider.setAttribute("aria-valuenow", point.round);
    this.slider.setAttribute("aria-valuetext", told(point));
    this.tip.replaceChildren(
      element("strong", {}, `Round ${point.round}`),
      ...KINDS.filter((kind) => point[kind] !== undefined).map((kind) =>
        element(
          "span",
          { class: `key ${kind}` },
          format.candidate(kind),
          element("b", {}, shown(point[kind])),
        ),
      ),
    );
    this.tip.style.insetInlineStart = `${Math.min(at + 12, this.plot.clientWidth - this.tip.offsetWidth - 4)}px`;
  }
}

const shown = (value) => (value === undefined ? "–" : format.percent(value));
const told = (point) =>
  `Round ${point.round}: ${KINDS.filter((kind) => point[kind] !== undefined)
    .map((kind) => `${format.candidate(kind)} ${shown(point[kind])}`)
    .join(", ")}`;

function axes({ x, y, first, end, low, high, width, height }) {
  const made = [],
    step = high - low > 0.5 ? 0.2 : high - low > 0.2 ? 0.1 : 0.05;
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + 1e-9; value += step) {
    made.push(
      shape("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value) }),
      shape(
        "text",
        { class: "tick", x: EDGE.left - 8, y: y(value) + 4, "text-anchor": "end" },
        format.percent(value, 0),
      ),
    );
  }
  const every = Math.max(1, Math.ceil((end - first) / ((width - EDGE.left - EDGE.right) / 44)));
  const pace = [1, 2, 5, 10, 20, 25, 50, 100, 200, 500].find((value) => value >= every) ?? every;
  for (let round = first === 0 ? 0 : pace === 1 ? first : pace; round <= end; round += pace) {
    made.push(
      shape(
        "text",
        { class: "tick", x: x(round), y: height - EDGE.bottom + 18, "text-anchor": "middle" },
        String(round),
      ),
    );
  }
  made.push(
    shape("text", { class: "tick", x: width - EDGE.right + 12, y: height - EDGE.bottom + 18 }, "round"),
  );
  return made;
}

function line(kind, dots, x, y) {
  const path = dots
    .map((point, index) => `${index ? "L" : "M"}${x(point.round).toFixed(1)} ${y(point[kind]).toFixed(1)}`)
    .join("");
  const made = shape("g", { class: `line ${kind}` }, shape("path", { d: path }));
  if (dots.length <= MANY_POINTS) {
    for (const point of dots) made.append(dot(kind, x(point.round), y(point[kind])));
  }
  return made;
}

function dot(kind, x, y) {
  const outline = {
    student: `M${x - 3} ${y}a3 3 0 1 0 6 0a3 3 0 1 0-6 0`,
    anchors: `M${x - 3} ${y - 3}h6v6h-6z`,
    moments: `M${x} ${y - 4}l4 7h-8z`,
    published: `M${x - 6} ${y}a6 6 0 1 0 12 0a6 6 0 1 0-12 0`,
  }[kind];
  return shape("path", { class: "dot", d: outline });
}

/** Names beside the ends of their lines, in one column right of all lines, pushed apart where they would touch. */
function labels(series, x, y, height) {
  const end = Math.max(...series.map(({ dots }) => x(dots.at(-1).round))) + 12;
  const placed = series.map(({ kind, dots }) => ({ kind, y: y(dots.at(-1)[kind]) + 4 }));
  placed.sort((one, other) => one.y - other.y || KINDS.indexOf(one.kind) - KINDS.indexOf(other.kind));
  for (let index = 1; index < placed.length; index += 1)
    placed[index].y = Math.max(placed[index].y, placed[index - 1].y + 15);
  const below = placed.at(-1).y - (height - EDGE.bottom);
  if (below > 0) {
    placed.at(-1).y -= below;
    for (let index = placed.length - 2; index >= 0; index -= 1)
      placed[index].y = Math.min(placed[index].y, placed[index + 1].y - 15);
  }
  return placed.map((label) =>
    shape("text", { class: `label ${label.kind}`, x: end, y: label.y }, format.candidate(label.kind)),
  );
}
