// The inside of a step, lane by lane, and what flows between the tiers.

import { FORMATS, duration } from "./format.js";

const NS = "http://www.w3.org/2000/svg";
const LANES = [
  ["nvme_read", "Drive reads"],
  ["h2d", "Copies up"],
  ["compute", "Compute"],
  ["d2h", "Copies down"],
  ["nvme_write", "Drive writes"],
];

// Lanes from a step report alone: parts of the step follow one another, links are bars of their busy time.
function fromTotals(report) {
  const compute = [];
  let at = 0;
  for (const part of ["forward", "backward", "optimizer", "commit"]) {
    const seconds = report[`${part}_seconds`] ?? 0;
    if (seconds > 0) compute.push([part, at, at + seconds]);
    at += seconds;
  }
  const links = Object.entries(report.links ?? {}).map(([name, link]) => [
    name, link.busy_seconds ? [[name, 0, Math.min(link.busy_seconds, report.step_seconds)]] : [],
  ]);
  return { compute, ...Object.fromEntries(links) };
}

function told(name, report) {
  if (name === "compute") {
    const waits = (report.stall_read_seconds ?? 0) + (report.stall_write_seconds ?? 0);
    return `${FORMATS.share(Math.min(1, waits / report.step_seconds))} waiting`;
  }
  const link = report.links?.[name];
  const moved = (link?.payload_bytes ?? 0) + (link?.padding_bytes ?? 0);
  if (!moved) return "nothing";
  const busy = link.busy_seconds ? FORMATS.share(Math.min(1, link.busy_seconds / report.step_seconds)) : "";
  return `${FORMATS.size(moved)}${busy ? `, ${busy}` : ""}`;
}

function svgOf(spans, seconds, label) {
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  for (const [kind, start, end] of spans) {
    const rect = document.createElementNS(NS, "rect");
    rect.setAttribute("class", `f-${kind}`);
    rect.setAttribute("x", `${((100 * start) / seconds).toFixed(3)}%`);
    rect.setAttribute("width", `${Math.max(0.05, (100 * (end - start)) / seconds).toFixed(3)}%`);
    rect.setAttribute("height", "100%");
    svg.append(rect);
  }
  return svg;
}

const words = (className, text) => {
  const span = document.createElement("span");
  span.className = className;
  span.textContent = text;
  return span;
};

function box(className, ...children) {
  const made = document.createElement("div");
  made.className = className;
  made.append(...children);
  return made;
}

// Draw the newest step of which the engine told when what ran; without one, from the totals of the newest step.
export function drawLanes(place, note, report, timeline) {
  if (!report?.step_seconds) return;
  const exact = timeline?.step && timeline.step <= report.step ? timeline : null;
  const lanes = exact?.lanes ?? fromTotals(report);
  const seconds = exact?.seconds ?? report.step_seconds;
  const made = LANES.map(([name, title]) => box("lane",
    words("name", title),
    svgOf(lanes[name] ?? [], seconds, `${title}: ${told(name, report)}`),
    words("told", told(name, report)),
  ));
  const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => words("", part ? duration(seconds * part) : "0"));
  const ruler = box("ruler", box("", ...marks));
  place.replaceChildren(...made, ruler);
  const step = `step ${FORMATS.count(report.step)}`;
  if (!exact) note.textContent = `${step}: bars show how long, not when`;
  else note.textContent = exact.step === report.step ? step : `picture of step ${FORMATS.count(exact.step)}, numbers of ${step}`;
}

// Rates over the links: live ones where the worker tells them, else those of the newest step.
export function drawFlows(place, note, report, tier) {
  const live = tier?.rates;
  note.textContent = live ? "now" : report ? `mean of step ${FORMATS.count(report.step)}` : "";
  for (const flow of place.querySelectorAll("[data-flow]")) {
    const name = flow.dataset.flow;
    const rate = live ? live[name] : report?.links?.[name] && report.links[name].payload_bytes / report.step_seconds;
    flow.querySelector(".told").textContent = Number.isFinite(rate) ? FORMATS.rate(rate) : "–";
    flow.dataset.moves = rate > 0 ? "1" : "0";
  }
}
