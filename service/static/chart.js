// Curves over steps: linear or logarithmic, zoomed by dragging or by keys, read with the pointer or arrows.

const NS = "http://www.w3.org/2000/svg";
const LEFT = 46;
const BOTTOM = 22;
const TOP = 8;
const RIGHT = 6;

const node = (name, attributes) => {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

// Round numbers, at most `most` of them, that lie from low to high.
export function ticks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i += 1) found.push(i * step);
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1)
    for (const factor of [1, 2, 5]) {
      const value = factor * 10 ** power;
      if (value >= low && value <= high) found.push(value);
    }
  return found.length > 1 ? found : ticks(low, high, 4).filter((value) => value > 0);
}

export function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-2) return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
  if (size >= 1e3) return `${Number((value / 1e3).toFixed(1))}k`;
  return String(Number(value.toPrecision(3)));
}

// A mean over the steps around each one: it follows the curve and not its noise, and lags behind neither.
export function smoothed(points) {
  const reach = Math.max(2, Math.round(points.length / 40));
  const sums = [0];
  for (const [, value] of points) sums.push(sums.at(-1) + value);
  return points.map(([step], i) => {
    const near = Math.min(reach, i, points.length - 1 - i); // as far to both sides, so that ends do not sag
    return [step, (sums[i + near + 1] - sums[i - near]) / (2 * near + 1)];
  });
}

const nearest = (points, step) =>
  points.reduce((best, one) => (Math.abs(one[0] - step) < Math.abs(best[0] - step) ? one : best));

export class Curves {
  // `onZoom(first, last)` hears of a range that was chosen, null for the whole; `onRead(text)` what is pointed at.
  constructor(figure, { label, height = 300, low = false, onZoom = null, onRead = null }) {
    Object.assign(this, { figure, label, height, low, onZoom, onRead });
    this.curves = [];
    this.log = false;
    this.range = null;
    this.at = null;
    new ResizeObserver(() => this.render()).observe(figure);
  }

  draw(curves) {
    this.curves = curves;
    this.render();
  }

  setLog(log) {
    this.log = log;
    this.render();
  }

  zoom(range) {
    this.range = range;
    this.at = null;
    this.render();
    this.onZoom?.(range);
  }

  get shown() {
    const [first, last] = this.range ?? [-Infinity, Infinity];
    return this.curves.map((curve) => ({
      ...curve,
      points: curve.points.filter(([step, value]) => step >= first && step <= last && (!this.log || value > 0)),
    }));
  }

  render() {
    const wide = this.figure.clientWidth;
    const curves = this.shown;
    const all = curves.flatMap((curve) => curve.points);
    if (all.length < 2 || wide < 80) return;
    this.scale(all, wide);
    if (!this.svg) this.begin();
    this.svg.setAttribute("viewBox", `0 0 ${wide} ${this.high}`);
    const parts = [...this.axes()];
    for (const curve of curves) parts.push(...this.curve(curve));
    this.overlay = node("g", {});
    this.svg.replaceChildren(...parts, this.overlay);
    this.svg.setAttribute("aria-label", this.summary(curves));
    if (this.at !== null) this.read(this.at);
  }

  scale(all, wide) {
    this.high = this.svg?.clientHeight || (this.low ? 96 : this.height);
    const steps = all.map(([step]) => step);
    const values = all.map(([, value]) => value);
    const [x0, x1] = this.range ?? [Math.min(...steps), Math.max(...steps)];
    let y0 = Math.min(...values);
    let y1 = Math.max(...values);
    const by = this.log ? Math.log : (value) => value;
    const back = this.log ? Math.exp : (value) => value;
    const margin = (by(y1) - by(y0)) * 0.06 || Math.abs(by(y1)) * 0.05 || 0.05;
    [y0, y1] = [back(by(y0) - margin), back(by(y1) + margin)];
    if (!this.log && Math.min(...values) >= 0) y0 = Math.max(0, y0);
    this.x0 = x0;
    this.x1 = Math.max(x1, x0 + 1);
    this.y0 = y0;
    this.y1 = y1;
    this.x = (step) => LEFT + ((step - this.x0) / (this.x1 - this.x0)) * (wide - LEFT - RIGHT);
    this.y = (value) => TOP + (1 - (by(value) - by(y0)) / (by(y1) - by(y0))) * (this.high - TOP - BOTTOM);
    this.step = (x) => this.x0 + ((x - LEFT) / (wide - LEFT - RIGHT)) * (this.x1 - this.x0);
    this.wide = wide;
  }

  begin() {
    this.svg = node("svg", { role: "img" });
    this.figure.replaceChildren(this.svg);
    if (!this.onZoom) return;
    this.svg.setAttribute("tabindex", "0");
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("pointerdown", (event) => this.press(event));
    this.svg.addEventListener("pointermove", (event) => this.move(event));
    this.svg.addEventListener("pointerup", () => this.release());
    this.svg.addEventListener("pointercancel", () => this.forget());
    this.svg.addEventListener("pointerleave", () => this.pressed === undefined && this.forget());
    this.svg.addEventListener("dblclick", () => this.zoom(null));
  }

  * axes() {
    const values = this.log ? logTicks(this.y0, this.y1) : ticks(this.y0, this.y1, this.low ? 2 : 5);
    let above = Infinity;
    for (const value of values) {
      const y = this.y(value);
      if (above - y < 16) continue;
      above = y;
      yield node("line", { class: "axis", x1: LEFT, x2: this.wide - RIGHT, y1: y, y2: y });
      const text = node("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" });
      text.textContent = short(value);
      yield text;
    }
    for (const step of ticks(this.x0, this.x1, this.low ? 2 : Math.min(8, this.wide / 70))) {
      if (!Number.isInteger(step)) continue;
      const x = this.x(step);
      const anchor = x > this.wide - 30 ? "end" : "middle";
      const text = node("text", { x, y: this.high - 4, "text-anchor": anchor });
      text.textContent = step.toLocaleString("en");
      yield text;
    }
  }

  * curve({ name, points, smooth, dots }) {
    const path = (list) => list.map(([step, value], i) =>
      `${i ? "L" : "M"}${this.x(step).toFixed(1)} ${this.y(value).toFixed(1)}`).join("");
    if (!points.length) return;
    if (smooth && points.length > 8) {
      yield node("path", { class: `curve faint c-${name}`, d: path(points) });
      yield node("path", { class: `curve c-${name}`, d: path(smoothed(points)) });
    } else {
      yield node("path", { class: `curve c-${name}`, d: path(points) });
    }
    if (dots && points.length < 60)
      for (const [step, value] of points)
        yield node("circle", { class: `dot c-${name}`, cx: this.x(step), cy: this.y(value), r: 3 });
  }

  summary(curves) {
    const told = curves.filter((curve) => curve.points.length).map(({ points, label }) => {
      const [first, last] = [points[0], points.at(-1)];
      return `${label ?? ""} ${short(first[1])} at step ${first[0]}, ${short(last[1])} at step ${last[0]}`.trim();
    });
    const keys = this.onZoom ? " Arrow keys read it, plus and minus zoom, zero shows the whole." : "";
    return `${this.label}: ${told.join("; ")}.${keys}`;
  }

  read(step) {
    const curves = this.shown.filter((curve) => curve.points.length);
    if (!curves.length) return;
    const [at] = nearest(curves[0].points, step);
    this.at = at;
    const x = this.x(at);
    this.overlay.replaceChildren(node("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: this.high - BOTTOM }));
    const told = curves.map(({ label, points }) => {
      const [where, value] = nearest(points, at);
      return `${label} ${value.toFixed(4)}${where === at ? "" : ` (step ${where.toLocaleString("en")})`}`;
    });
    this.onRead?.(`Step ${at.toLocaleString("en")}: ${told.join(", ")}`);
  }

  forget() {
    this.pressed = undefined;
    this.at = null;
    this.overlay?.replaceChildren();
    this.onRead?.("");
  }

  stepAt(event) {
    return this.step(event.clientX - this.svg.getBoundingClientRect().left);
  }

  press(event) {
    if (event.button !== 0) return;
    this.pressed = this.pulled = this.stepAt(event);
    this.svg.setPointerCapture(event.pointerId);
  }

  move(event) {
    const step = this.stepAt(event);
    this.read(step);
    if (this.pressed === undefined) return;
    this.pulled = step;
    const [a, b] = [this.x(this.pressed), this.x(step)];
    this.overlay.append(node("rect", {
      class: "pull", x: Math.min(a, b), width: Math.abs(a - b), y: TOP, height: this.high - TOP - BOTTOM,
    }));
  }

  release() {
    const [first, last] = [this.pressed, this.pulled].sort((a, b) => a - b);
    this.pressed = undefined;
    if (this.x(last) - this.x(first) > 8) this.narrow(first, last);
  }

  narrow(first, last) {
    const range = [Math.max(this.x0, Math.floor(first)), Math.min(this.x1, Math.ceil(last))];
    if (range[1] - range[0] >= 2) this.zoom(range);
  }

  key(event) {
    const middle = this.at ?? (this.x0 + this.x1) / 2;
    const half = (this.x1 - this.x0) / 2;
    const steps = this.shown[0].points.map(([step]) => step);
    const at = steps.indexOf(this.at);
    const act = {
      ArrowLeft: () => this.read(steps[at < 0 ? steps.length - 1 : Math.max(0, at - 1)]),
      ArrowRight: () => this.read(steps[at < 0 ? 0 : Math.min(steps.length - 1, at + 1)]),
      Home: () => this.read(steps[0]),
      End: () => this.read(steps.at(-1)),
      "+": () => this.narrow(middle - half / 2, middle + half / 2),
      "=": () => this.narrow(middle - half / 2, middle + half / 2),
      "-": () => this.zoom(this.range && half < 1e9 ? this.wider(middle, half * 2) : null),
      0: () => this.zoom(null),
      Escape: () => this.zoom(null),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  wider(middle, half) {
    const steps = this.curves.flatMap((curve) => curve.points.map(([step]) => step));
    const [low, high] = [Math.min(...steps), Math.max(...steps)];
    if (middle - half <= low && middle + half >= high) return null;
    return [Math.max(low, Math.floor(middle - half)), Math.min(high, Math.ceil(middle + half))];
  }
}
