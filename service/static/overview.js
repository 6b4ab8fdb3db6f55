// The overview: the box as it changes, and the curve of the running job.

import { bind } from "./bind.js";
import { Curves } from "./chart.js";
import { follow } from "./live.js";
import { refresh } from "./parts.js";
import { loadSeries, trainPoints } from "./series.js";
import "./page.js";

let known = null; // what is on the page that is not a number
let drawn = { job: null, step: -1 };

const shape = (status) =>
  JSON.stringify([
    status.running && [status.running.id, status.running.status],
    status.queue.map((job) => [job.id, job.priority]),
    status.jobs,
    status.not_ready,
    status.storage?.map((drive) => [drive.path, drive.active, drive.why]),
    status.device?.gpus.map((gpu) => gpu.name),
  ]);

async function drawSpark(running) {
  const figure = document.getElementById("spark");
  const step = running?.engine.step ?? 0;
  if (!figure || step < 2 || (drawn.job === running.id && drawn.step === step && figure.querySelector("svg"))) return;
  drawn = { job: running.id, step };
  const series = await loadSeries(running.id, { points: 300 }).catch(() => null);
  if (!series) return;
  new Curves(figure, { label: "Training loss of the running job", height: 196 }).draw([
    { name: "train", points: trainPoints(series), smooth: true },
  ]);
}

function take(status) {
  const show = () => {
    bind(document, status);
    drawSpark(status.running);
  };
  const now = shape(status);
  // The first one, too, may tell of more than the page was drawn from.
  if (now === known) show();
  else refresh(show);
  known = now;
}

follow(() => "/status/stream", { snapshot: take, status: take });
