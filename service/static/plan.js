// A plan in words and numbers, before the job.

import { FORMATS, shown } from "./format.js";

const LINKS = [
  ["nvme_read", "Drive reads a step"],
  ["nvme_write", "Drive writes a step"],
  ["h2d", "Copies up a step"],
  ["d2h", "Copies down a step"],
];
const PARTS = { total_device_bytes: "Device memory", total_host_bytes: "Host memory", volume_bytes: "Room on the drives" };
const HOMES = { nvme: "on the drives", host: "in host memory", device: "on the device" };

function list(rows) {
  const made = document.createElement("dl");
  made.className = "facts";
  for (const [name, value] of rows) {
    const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
    dt.textContent = name;
    dd.textContent = value;
    made.append(dt, dd);
  }
  return made;
}

const words = (tag, className, text) => {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
};

function range(sizes) {
  const [first, last] = [FORMATS.size(Math.min(...sizes)), FORMATS.size(Math.max(...sizes))];
  if (first === last) return first;
  const [number, unit] = first.split(" ");
  return `${last.endsWith(` ${unit}`) ? number : first}–${last}`;
}

function planRows(plan) {
  const rows = [];
  if (Number.isFinite(plan.step_seconds)) rows.push(["A step takes", FORMATS.duration(plan.step_seconds)]);
  for (const [key, name] of Object.entries(PARTS)) if (key in plan) rows.push([name, FORMATS.size(plan[key])]);
  for (const [link, name] of LINKS) {
    const sizes = Object.values(plan.link_bytes ?? {}).map((way) => way[link]).filter(Number.isFinite);
    if (sizes.length) rows.push([name, range(sizes)]);
  }
  return rows;
}

function where(plan) {
  const tiers = plan.tiers ?? [];
  const told = Object.entries(HOMES)
    .map(([tier, home]) => [tiers.filter((one) => one === tier).length, home])
    .filter(([count]) => count)
    .map(([count, home]) => `${count} ${home}`);
  return told.length ? `Records live ${told.join(", ")}.` : "";
}

const settled = (value) =>
  typeof value === "object" ? Object.entries(value).map((pair) => pair.join(" ")).join(", ")
  : typeof value === "number" && value !== 0 && Math.abs(value) < 1e-3 ? FORMATS.small(value)
  : shown(value, "text");

export function showPlan(place, answer) {
  const parts = [words("p", "verdict", "It fits.")];
  for (const warning of answer.warnings) parts.push(words("p", "notice", warning));
  parts.push(list(planRows(answer.plan)));
  const home = where(answer.plan);
  if (home) parts.push(words("p", "small soft", home));
  const rows = Object.entries(answer.hyperparameters).filter(([, value]) => value !== null);
  const details = document.createElement("details");
  details.id = "settled";
  details.open = place.querySelector("#settled")?.open ?? false;
  details.append(words("summary", "", "Settings as settled"), list([...rows.map(([name, value]) => [name, settled(value)]), ["seed", answer.seed]]));
  parts.push(details);
  place.replaceChildren(...parts);
}
