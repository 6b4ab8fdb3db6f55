// A plan in words and numbers, before the job.

import { FORMATS, pick, shown } from "./format.js";

const SIZES = [
  ["total_device_bytes", "Device memory"],
  ["total_host_bytes", "Host memory"],
  ["volume_bytes", "Room on the drives"],
  ["forecast.wear.step_bytes", "Drive writes a step"],
  ["forecast.step.link_bytes.nvme_read", "Drive reads a step"],
  ["forecast.step.link_bytes.h2d", "Copies up a step"],
  ["forecast.step.link_bytes.d2h", "Copies down a step"],
];
const HOMES = { nvme: "on the drives", host: "in host memory", device: "on the device" };
const ORIGINS = {
  measured: "from what this box was measured at",
  described: "from a description of this box",
  default: "from what such a box usually does; “headrace calibrate” measures this one",
};

const words = (tag, className, text) => {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
};

function list(rows) {
  const made = words("dl", "facts", "");
  for (const [name, value] of rows) made.append(words("dt", "", name), words("dd", "", value));
  return made;
}

function folded(place, id, title, ...inside) {
  const made = document.createElement("details");
  made.id = id;
  made.open = place.querySelector(`#${id}`)?.open ?? false;
  made.append(words("summary", "", title), ...inside);
  return made;
}

// Why what was measured is worth less than that; the next job measures it again.
const doubts = (forecast) =>
  forecast.doubts?.length ? ` (${forecast.doubts.join("; ")}; “headrace calibrate” measures again)` : "";

// How long it will take, the first thing that people want to know.
function time(plan) {
  const step = plan.forecast?.step_seconds;
  if (!step) return [];
  const { duration, per_second } = FORMATS;
  const all = plan.total_steps ? `${duration(plan.total_steps * step.expected)}` : duration(step.expected);
  const spread = plan.total_steps
    ? `${duration(plan.total_steps * step.low)} and ${duration(plan.total_steps * step.high)}`
    : `${duration(step.low)} and ${duration(step.high)}`;
  const steps = plan.total_steps ? `${FORMATS.count(plan.total_steps)} steps of ${duration(step.expected)}, ` : "a step; ";
  return [
    words("p", "big", `About ${all}`),
    words("p", "small soft", `${steps}${per_second(plan.forecast.tokens_per_second)} tokens a second. Between ${spread}, ${ORIGINS[plan.forecast.origin] ?? ""}${doubts(plan.forecast)}.`),
  ];
}

function where(plan) {
  const tiers = plan.tiers ?? [];
  const told = Object.entries(HOMES)
    .map(([tier, home]) => [tiers.filter((one) => one === tier).length, home])
    .filter(([count]) => count)
    .map(([count, home]) => `${count} ${home}`);
  return told.length ? `Records live: ${told.join(", ")}.` : "";
}

const settled = (value) =>
  Array.isArray(value) ? value.map(settled).join("; ")
  : typeof value === "object" ? Object.entries(value).map((pair) => pair.join(" ")).join(", ")
  : typeof value === "number" && value !== 0 && Math.abs(value) < 1e-3 ? FORMATS.small(value)
  : shown(value, "text");

export function showPlan(place, answer) {
  const { plan } = answer;
  const parts = [words("p", "verdict", "It fits."), ...time(plan)];
  for (const warning of answer.warnings) parts.push(words("p", "notice", warning));
  parts.push(list(SIZES.filter(([path]) => pick(plan, path) !== null).map(([path, name]) => [name, FORMATS.size(pick(plan, path))])));
  const share = pick(plan, "forecast.wear.share");
  if (share !== null) parts.push(list([["Of the drives’ rated life", `${Number((100 * share).toPrecision(3))} %`]]));
  if (where(plan)) parts.push(words("p", "small soft", where(plan)));
  const sentence = plan.forecast?.sentence;
  if (sentence) parts.push(folded(place, "foretold", "What each part of a step waits for", words("p", "small soft", sentence)));
  if (plan.changes?.length) {
    const changes = words("ul", "small soft stack-tight", "");
    for (const change of plan.changes) changes.append(words("li", "", change.text));
    parts.push(folded(place, "changes", "What would make it faster", changes));
  }
  const rows = Object.entries({ ...answer.hyperparameters, ...answer.settings, seed: answer.seed });
  parts.push(folded(place, "settled", "Settings as settled", list(rows.filter(([, value]) => value !== null).map(([name, value]) => [name, settled(value)]))));
  place.replaceChildren(...parts);
}
