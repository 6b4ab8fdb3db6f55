// A job's numbers as columns, and what comes after them from the stream.

import { api } from "./page.js";

export function loadSeries(jobId, { first, last, points = 2000 } = {}) {
  const asked = new URLSearchParams({ points });
  if (first !== undefined) asked.set("first", first);
  if (last !== undefined) asked.set("last", last);
  return api("GET", `/v1/fine_tuning/jobs/${jobId}/series?${asked}`);
}

const pairs = (columns, name) =>
  columns.step.map((step, i) => [step, columns[name][i]]).filter(([, value]) => Number.isFinite(value));

export const trainPoints = (series) => pairs(series.steps, "train_loss");

const MAX_POINTS = 4500; // of a curve that grows; then it is fetched again, thinned

// The columns as points by name, that grow: a step that is told again replaces the one there.
export class Series {
  constructor(series, names) {
    this.every = series.every;
    this.names = names;
    this.points = {};
    for (const name of names.steps) this.points[name] = pairs(series.steps, name);
    for (const name of names.evaluations) this.points[name] = pairs(series.evaluations, name);
  }

  get isFull() {
    return this.points[this.names.steps[0]].length > MAX_POINTS;
  }

  add(kind, data) {
    for (const name of this.names[kind]) {
      if (!Number.isFinite(data[name])) continue;
      const points = this.points[name];
      let at = points.length;
      while (at > 0 && points[at - 1][0] >= data.step) at -= 1;
      const same = points[at]?.[0] === data.step ? 1 : 0;
      points.splice(at, same, [data.step, data[name]]);
    }
  }
}
