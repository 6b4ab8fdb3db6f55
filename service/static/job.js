// The page of a job: curves, lanes, flows and events as they come, and what can be done with it.

import { bind, localTimes, moment } from "./bind.js";
import { Curves } from "./chart.js";
import { FORMATS } from "./format.js";
import { drawFlows, drawLanes } from "./lanes.js";
import { follow } from "./live.js";
import { api, complain, tell } from "./page.js";
import { refresh } from "./parts.js";
import { Series, loadSeries } from "./series.js";

const NAMES = {
  steps: ["train_loss", "tokens_per_s", "grad_norm", "learning_rate"],
  evaluations: ["valid_loss"],
};
const SHOWN_EVENTS = 200;
const OVER = ["succeeded", "failed", "cancelled"];

const head = document.querySelector("[data-job]");
const id = head.dataset.job;
const seenSeq = head.dataset.seq; // what the server has rendered; the stream tells the rest
const jobUrl = `/v1/fine_tuning/jobs/${id}`;
const place = (name) => document.getElementById(name);
const state = { report: null, tier: null };
let series = null;
let zoomed = null; // the series of the range that is looked at, in full
let timeline = null;
let drawing = 0;

const loss = new Curves(place("loss"), {
  label: "Loss by step",
  onZoom: zoomTo,
  onRead: (text) => { place("readout").textContent = text; },
});
const small = [
  ["tokens_per_s", "rate-curve", "Tokens a second"],
  ["grad_norm", "norm-curve", "Gradient norm"],
  ["learning_rate", "lr-curve", "Learning rate"],
].map(([name, figure, label]) => [name, new Curves(place(figure), { label, low: true, height: 96 })]);

function draw() {
  drawing = 0;
  const shown = zoomed ?? series;
  loss.draw([
    { name: "train", label: "training", points: shown.points.train_loss, smooth: true },
    { name: "eval", label: "evaluation", points: shown.points.valid_loss, dots: true },
  ]);
  for (const [name, curves] of small) curves.draw([{ name: "other", points: series.points[name], smooth: true }]);
  const thinned = place("thinned");
  thinned.hidden = shown.every === 1;
  thinned.textContent = `Every ${shown.every}th step is drawn; zoom in for all of them.`;
  drawLanes(place("lanes"), place("step-told"), state.report, timeline);
  drawFlows(place("tiers"), place("tiers-told"), state.report, state.tier);
}

const drawSoon = () => { drawing ||= requestAnimationFrame(draw); };

async function zoomTo(range) {
  place("chart-whole").disabled = range === null;
  zoomed = null;
  if (range && series.every > 1) {
    const [first, last] = range;
    const answer = await loadSeries(id, { first, last }).catch((error) => complain(error.message));
    if (answer && loss.range?.[0] === first && loss.range[1] === last) zoomed = new Series(answer, NAMES);
  }
  drawSoon();
}

async function loadTimeline() {
  const answer = await fetch(`${jobUrl}/timeline`, { headers: { accept: "application/json" } }).catch(() => null);
  if (answer?.ok) timeline = await answer.json();
  drawSoon();
}

function show(job) {
  Object.assign(state, job, { report: state.report, tier: state.tier });
  bind(document, state);
  showTitle();
  drawSoon();
}

const title = document.title;

// How far it is, also for those who look at another tab.
function showTitle() {
  const { step, total_steps: total } = state.engine;
  const isRunning = state.status === "running" && total;
  document.title = isRunning ? `${FORMATS.share((step ?? 0) / total)} · ${title}` : title;
}

// A run of days is drawn from a thinned series, or the page would grow with every step.
let meanwhile = null; // reports that come while it is fetched
async function thin() {
  meanwhile = [];
  const told = await loadSeries(id).catch(() => null);
  if (told) series = new Series(told, NAMES);
  for (const data of meanwhile) series.add("steps", data);
  meanwhile = null;
}

let lastTimeline = 0;
function takeMetrics(event) {
  const data = event.data;
  state.report = data;
  if (data.step > (state.engine.step ?? 0)) // else it is told again
    state.engine.tokens_seen = (state.engine.tokens_seen ?? 0) + (data.num_tokens ?? 0);
  const fresh = ["step", "total_steps", "epoch", "loss", "token_accuracy", "tokens_per_s", "step_time_s", "eta_s", "bottleneck", "reward_margin", "reward_accuracy"];
  for (const name of fresh) if (name in data) state.engine[name] = data[name];
  series.add("steps", data);
  meanwhile?.push(data);
  if (series.isFull && !meanwhile) thin();
  zoomed?.add("steps", data);
  bind(document, state);
  showTitle();
  drawSoon();
  if (Date.now() - lastTimeline > 1000) {
    lastTimeline = Date.now();
    loadTimeline();
  }
}

function addEvent(event) {
  const list = place("events");
  const line = document.createElement("li");
  line.className = `level-${event.level}`;
  const time = document.createElement("time");
  time.dateTime = new Date(event.created_at * 1000).toISOString();
  time.textContent = moment(new Date(event.created_at * 1000));
  const words = document.createElement("p");
  words.textContent = event.message;
  line.append(time, words);
  if (list.firstElementChild.querySelector("p").textContent === event.message) list.firstElementChild.remove();
  list.prepend(line);
  while (list.children.length > SHOWN_EVENTS) list.lastElementChild.remove();
}

const renew = () => refresh(() => bind(document, state));

function tellOf(event) {
  addEvent(event);
  if (event.kind === "phase") state.engine.phase = event.message;
  bind(document, state);
}

function change(event) {
  addEvent(event);
  if (event.kind === "status") state.status = event.data.status;
  showTitle();
  renew();
}

const handlers = {
  snapshot: show,
  reset: () => location.reload(),
  metrics: takeMetrics,
  eval(event) {
    series.add("evaluations", event.data);
    zoomed?.add("evaluations", event.data);
    for (const name of ["valid_loss", "valid_mean_token_accuracy", "valid_reward_accuracy"]) state.engine[name] = event.data[name];
    addEvent(event);
    bind(document, state);
    drawSoon();
  },
  commit(event) {
    state.engine.committed_step = event.step;
    bind(document, state);
  },
  tier({ data }) {
    state.tier = data;
    bind(document, state);
    drawFlows(place("tiers"), place("tiers-told"), state.report, state.tier);
  },
  phase: tellOf,
  log: (event) => (event.data?.histogram ? change(event) : addEvent(event)),
  warning: addEvent,
  status: change,
  plan: change,
  samples: change,
  row_losses: change,
  checkpoint: change,
  export: change,
  result: addEvent,
  done(job) {
    state.tier = null;
    show(job);
    renew();
    return false;
  },
};

// Whether there is nothing more to follow; the answer to a stream that ended without saying so.
async function isOver() {
  const job = await api("GET", jobUrl).catch(() => null);
  if (!job || !OVER.includes(job.status)) return false;
  handlers.done(job);
  return true;
}

async function act(verb) {
  try {
    const job = await api("POST", `${jobUrl}/${verb}`);
    if (job.status === "running" && verb !== "resume")
      tell(`It ${verb === "pause" ? "pauses" : "ends"} when the step in hand is finished and committed.`);
    renew();
  } catch (error) {
    complain(error.message);
  }
}

document.addEventListener("click", (event) => {
  const verb = event.target.closest("[data-act]")?.dataset.act;
  if (verb === "cancel") place("cancel-dialog").showModal();
  else if (verb) act(verb);
});
place("cancel-dialog").addEventListener("close", (event) => {
  if (event.target.returnValue === "cancel") act("cancel");
  event.target.returnValue = "";
});
place("chart-log").addEventListener("click", (event) => {
  const pressed = event.currentTarget.getAttribute("aria-pressed") !== "true";
  event.currentTarget.setAttribute("aria-pressed", String(pressed));
  loss.setLog(pressed);
});
place("chart-whole").addEventListener("click", () => loss.zoom(null));

async function begin() {
  const [job, told] = await Promise.all([api("GET", jobUrl), loadSeries(id)]);
  series = new Series(told, NAMES);
  state.report = told.newest;
  show(job);
  loadTimeline();
  if (document.querySelector("[data-over]")) return;
  follow((lastId) => `${jobUrl}/events/stream?last_event_id=${lastId ?? seenSeq}`, handlers, isOver);
}

localTimes(document);
begin().catch((error) => complain(error.message));
