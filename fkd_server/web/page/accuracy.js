// Accuracy by round: lines told apart by dashes and marks, not by colour alone, and as a table.

import { byId, element, say, shape, table } from "./dom.js";
import * as format from "./format.js";

// In order of drawing, the first on top, and the marks of their lines.
const MARKS = {
  student: (x, y) => `M${x - 3} ${y}a3 3 0 1 0 6 0a3 3 0 1 0-6 0`,
  anchors: (x, y) => `M${x - 3} ${y - 3}h6v6h-6z`,
  moments: (x, y) => `M${x} ${y - 4}l4 7h-8z`,
  personal: (x, y) => `M${x} ${y - 5}l4 5-4 5-4-5z`,
  published: (x, y) => `M${x - 6} ${y}a6 6 0 1 0 12 0a6 6 0 1 0-12 0`,
};
const KINDS = Object.keys(MARKS);
const MEASURES = { accuracy: "on the coordinator's test set", validation: "on the sites' held-out samples" };
const PERSONAL_SHOWN = "Personal models are scored on samples that also helped to choose them, so their number flatters.";
const PERSONAL_NOT_SHOWN =
  "Personal models are scored at their sites; scores stay there unless the run asks for them (report_personal).";

const EDGE = { top: 14, right: 92, bottom: 34, left: 46 };
const ENDS = [5, 10, 15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 500, 750, 1000];
const STEPS = [1, 2, 5, 10, 20, 25, 50, 100, 200, 500];
const MANY_POINTS = 40;
const LINE_HEIGHT = 15;

const has = (kind) => (point) => point[kind] !== undefined;
const kindsOf = (point) => KINDS.filter((kind) => has(kind)(point));
const shown = (value) => (value === undefined ? "–" : format.percent(value));
const scores = (point) =>
  kindsOf(point).map((kind) => `${format.candidate(kind)} ${shown(point[kind])}`).join(", ");

/** The chart and its table. */
export class Accuracy {
  constructor(live) {
    this.live = live;
    this.measure = "accuracy";
    this.points = [];
    this.at = undefined; // index of the one looked at
    this.drawn = "";
    this.plot = byId("accuracy");
    this.picture = this.plot.firstElementChild;
    this.slider = byId("accuracy-round"); // to read the chart with a keyboard, or by ear
    this.tip = byId("accuracy-tip");
    byId("measures").addEventListener("change", (event) => {
      this.measure = event.target.value;
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => this.lookAt(this.nearest(event.clientX)));
    this.plot.addEventListener("pointerleave", () => this.lookAt());
    for (const kind of ["focus", "input"])
      this.slider.addEventListener(kind, () => this.lookAt(Number(this.slider.value)));
    this.slider.addEventListener("blur", () => this.lookAt());
    addEventListener("keydown", ({ key }) => key === "Escape" && this.lookAt());
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.plot;
    if (this.live.status === null || width === 0) return;
    const scored = { accuracy: this.scored("accuracy"), validation: this.scored("validation") };
    byId("measures").toggleAttribute("data-off", !scored.accuracy.length || !scored.validation.length);
    const reported = scored.validation.some(has("personal"));
    if (this.live.known.has("rounds")) say(byId("personal-note"), reported ? PERSONAL_SHOWN : PERSONAL_NOT_SHOWN);
    const other = scored.accuracy.length > 0 ? "accuracy" : "validation";
    const measure = scored[this.measure].length > 0 ? this.measure : other;
    const points = scored[measure], { rounds } = this.live.status;
    const drawn = JSON.stringify([measure, points, rounds, width, height]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.points = points;
    if (points.length === 0) return;
    const picture = this.drawLines(points, rounds, MEASURES[measure]);
    this.picture.replaceWith(picture);
    this.picture = picture;
    this.slider.disabled = false;
    this.slider.max = points.length - 1;
    this.slider.setAttribute("aria-label", `Round to read accuracies ${MEASURES[measure]} of`);
    if (this.at === undefined) this.turnTo(points.length - 1);
    else this.lookAt(Math.min(this.at, points.length - 1));
    const kinds = KINDS.filter((kind) => kind !== "personal" || points.some(has(kind)));
    byId("accuracy-table").replaceChildren(
      table(
        ["Round", ...kinds.map(format.candidate)],
        points.map((point) => [String(point.round), ...kinds.map((kind) => shown(point[kind]))]),
        () => true,
      ),
    );
  }

  /** An object per scored round; of "moments.0", "moments.1" and so on the best, as a vote would choose. */
  scored(measure) {
    return this.live.inOrder().filter((round) => Object.keys(round[measure]).length > 0).map((round) => {
      const point = { round: round.round };
      for (const [name, value] of Object.entries(round[measure])) {
        const kind = name.split(".")[0];
        point[kind] = Math.max(point[kind] ?? 0, value);
      }
      point.published ??= point[round.published];
      return point;
    });
  }

  drawLines(points, rounds, where) {
    const width = Math.max(280, this.plot.clientWidth), height = this.plot.clientHeight;
    const first = Math.min(1, points[0].round), last = points.at(-1).round;
    const end = Math.max(2, Math.min(Math.max(rounds, last), ENDS.find((value) => value >= last) ?? rounds));
    const values = points.flatMap((point) => kindsOf(point).map((kind) => point[kind]));
    const low = Math.max(0, Math.floor(10 * Math.min(...values) - 0.3) / 10);
    const high = Math.max(low + 0.1, Math.ceil(10 * Math.max(...values)) / 10);
    const right = width - EDGE.right, bottom = height - EDGE.bottom;
    const x = (round) => EDGE.left + ((right - EDGE.left) * (round - first)) / (end - first);
    const y = (value) => bottom - ((bottom - EDGE.top) * (value - low)) / (high - low);
    const dotsOf = (kind) => points.filter(has(kind)).map((point) => [x(point.round), y(point[kind])]);
    const lines = KINDS.map((kind) => ({ kind, dots: dotsOf(kind) })).filter(({ dots }) => dots.length > 0);
    this.x = x;
    this.cursor = shape("line.cursor", { y1: EDGE.top, y2: bottom, visibility: "hidden" });
    return shape("svg",
      {
        viewBox: `0 0 ${width} ${height}`, role: "img",
        "aria-label": `Accuracy ${where}, by round; in round ${last}: ${scores(points.at(-1))}`,
      },
      ...heights({ low, high, right, y }),
      ...numbers({ first, end, right, bottom, x }),
      this.cursor,
      ...lines.map(drawLine).reverse(),
      ...labels(lines, bottom));
  }

  nearest(clientX) {
    const at = clientX - this.plot.getBoundingClientRect().left;
    const gaps = this.points.map((point) => Math.abs(this.x(point.round) - at));
    return gaps.indexOf(Math.min(...gaps));
  }

  /** Shows the numbers of a round; without an index, of none. */
  lookAt(index) {
    const point = this.points[index];
    this.at = index;
    this.tip.hidden = point === undefined;
    this.cursor?.setAttribute("visibility", point === undefined ? "hidden" : "visible");
    if (point === undefined) return;
    this.turnTo(index);
    const at = this.x(point.round);
    this.cursor.setAttribute("x1", at);
    this.cursor.setAttribute("x2", at);
    this.tip.replaceChildren(
      element("strong", `Round ${point.round}`),
      ...kindsOf(point).map((kind) =>
        element(`span.key.${kind}`, format.candidate(kind), element("b", shown(point[kind])))),
    );
    this.tip.style.left = `${Math.min(at + 12, this.plot.clientWidth - this.tip.offsetWidth - 4)}px`;
  }

  turnTo(index) {
    this.slider.value = index;
    this.slider.setAttribute("aria-valuetext", `Round ${this.points[index].round}: ${scores(this.points[index])}`);
  }
}

function* heights({ low, high, right, y }) {
  const step = high - low > 0.5 ? 0.2 : high - low > 0.2 ? 0.1 : 0.05;
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + 1e-9; value += step) {
    const place = { x: EDGE.left - 8, y: y(value) + 4, "text-anchor": "end" };
    yield shape("line.grid", { x1: EDGE.left, x2: right, y1: y(value), y2: y(value) });
    yield shape("text.tick", place, format.percent(value, 0));
  }
}

function* numbers({ first, end, right, bottom, x }) {
  const every = Math.ceil((end - first) / ((right - EDGE.left) / 44));
  const step = STEPS.find((value) => value >= every) ?? every;
  for (let round = step === 1 ? first : first && step; round <= end; round += step)
    yield shape("text.tick", { x: x(round), y: bottom + 18, "text-anchor": "middle" }, String(round));
  yield shape("text.tick", { x: right + 12, y: bottom + 18 }, "round");
}

function drawLine({ kind, dots }) {
  const path = dots.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  const marks = dots.length > MANY_POINTS ? [] : dots.map(([x, y]) => shape("path.dot", { d: MARKS[kind](x, y) }));
  return shape(`g.line.${kind}`, shape("path", { d: path }), ...marks);
}

/** Names beside the ends of their lines, in one column right of all lines, pushed apart where they would touch. */
function labels(lines, bottom) {
  const column = Math.max(...lines.map(({ dots }) => dots.at(-1)[0])) + 12;
  const placed = lines.map(({ kind, dots }) => ({ kind, y: dots.at(-1)[1] + 4 })).sort((one, other) => one.y - other.y);
  const pushed = (order, sign) => {
    for (let index = 1; index < order.length; index += 1)
      order[index].y = sign * Math.max(sign * order[index].y, sign * order[index - 1].y + LINE_HEIGHT);
  };
  pushed(placed, 1);
  placed.at(-1).y = Math.min(placed.at(-1).y, bottom);
  pushed([...placed].reverse(), -1);
  return placed.map(({ kind, y }) => shape(`text.label.${kind}`, { x: column, y }, format.candidate(kind)));
}
