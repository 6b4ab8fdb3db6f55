// Keeps what the server rendered fresh: spans with a path into the newest state, bars, moments.

import { pick, shown, width } from "./format.js";

export function bind(root, state) {
  for (const span of root.querySelectorAll("[data-v]")) {
    const { v, as, none } = span.dataset;
    const told = shown(pick(state, v), as, none);
    if (span.textContent !== told) span.textContent = told;
  }
  for (const rect of root.querySelectorAll("[data-w]")) {
    const { w, as } = rect.dataset;
    rect.setAttribute("width", `${width(pick(state, w), as)}%`);
  }
}

const sameDay = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const anyDay = new Intl.DateTimeFormat(undefined, {
  month: "short", day: "numeric", hour: "2-digit", minute: "2-digit",
});

export function moment(date) {
  const isToday = date.toDateString() === new Date().toDateString();
  return (isToday ? sameDay : anyDay).format(date);
}

export function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const date = new Date(time.dateTime);
    time.textContent = moment(date);
    time.title = date.toLocaleString();
  }
}
