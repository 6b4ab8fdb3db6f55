// The form for a job: uploads with progress, the plan of what stands in it, and the start.

import { bodyOf } from "./body.js";
import { fileOption, findAmongMore } from "./choices.js";
import { FORMATS, shown } from "./format.js";
import { api, complain, tell } from "./page.js";
import { showPlan } from "./plan.js";
import { upload } from "./upload.js";

const PLAN_MILLISECONDS = 400; // after the last key

const form = document.getElementById("form");
const plan = document.getElementById("plan");
const submit = document.getElementById("submit");
const why = document.getElementById("submit-why");
const inputs = () => form.querySelectorAll("[data-path]");
let planned = null; // the body that the shown plan is for, as text
let timer = 0;
let asking = null;

function setReady(ready, reason) {
  submit.disabled = !ready;
  why.textContent = reason;
}

function clearFaults() {
  for (const line of form.querySelectorAll(".wrong")) line.remove();
  for (const input of form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
}

// Put a refusal where it belongs: at the field that it names, else on the plan.
function showFault(error) {
  const names = [error.param, error.param?.replace("method.dpo.", "method.supervised.")];
  const field = [...form.querySelectorAll("[data-field]")].find((one) =>
    names.some((name) => name && (name === one.dataset.field || name.startsWith(`${one.dataset.field}.`))),
  );
  const line = document.createElement("p");
  line.className = "wrong";
  line.textContent = error.message;
  if (!field) {
    line.className = "notice bad";
    plan.replaceChildren(line);
    return;
  }
  field.closest("details")?.setAttribute("open", "");
  field.append(line);
  field.querySelector("[data-path]").setAttribute("aria-invalid", "true");
  const told = document.createElement("p");
  told.className = "soft";
  told.textContent = "No plan: see the field that is marked.";
  plan.replaceChildren(told);
}

async function ask() {
  const body = bodyOf(inputs());
  clearFaults();
  asking?.abort();
  planned = null;
  if (!body.model || !body.training_file) {
    setReady(false, "Choose a model and training rows first.");
    return;
  }
  asking = new AbortController();
  plan.setAttribute("aria-busy", "true");
  setReady(false, "Making the plan…");
  try {
    const answer = await api("POST", "/v1/fine_tuning/plans", body, { signal: asking.signal });
    showPlan(plan, answer);
    planned = JSON.stringify(body);
    setReady(true, "It joins the queue with these settings.");
  } catch (error) {
    if (error.name === "AbortError") return;
    showFault(error);
    setReady(false, "There is no plan for this yet.");
  }
  plan.setAttribute("aria-busy", "false");
}

function askSoon() {
  clearTimeout(timer);
  asking?.abort();
  setReady(false, "Making the plan…");
  timer = setTimeout(ask, PLAN_MILLISECONDS);
}

async function start(event) {
  event.preventDefault();
  const body = bodyOf(inputs());
  if (submit.disabled || JSON.stringify(body) !== planned) return;
  setReady(false, "Starting…");
  try {
    const job = await api("POST", "/v1/fine_tuning/jobs", body);
    location.assign(`/jobs/${job.id}`);
  } catch (error) {
    showFault(error);
    setReady(true, "It was not started.");
  }
}

async function take(drop, file) {
  const select = document.getElementById(drop.dataset.upload);
  const said = drop.querySelector(".upload-told");
  const progress = drop.querySelector("progress");
  const stop = drop.querySelector("button");
  const stopper = new AbortController();
  const onStop = () => stopper.abort();
  stop.addEventListener("click", onStop);
  progress.value = 0;
  progress.parentElement.hidden = false;
  said.textContent = `${file.name}, ${FORMATS.size(file.size)}`;
  try {
    const record = await upload(file, {
      signal: stopper.signal,
      onShare(share) {
        progress.value = share;
        said.textContent = `${file.name}: ${shown(share, "share")} of ${FORMATS.size(file.size)}`;
      },
    });
    select.append(fileOption(record));
    select.value = record.id;
    said.textContent = `${record.filename} is uploaded`;
    tell(`${record.filename} is uploaded.`);
    askSoon();
  } catch (error) {
    said.textContent = error.name === "AbortError" ? "Stopped. Upload again, or drop a file here." : error.message;
    if (error.name !== "AbortError") complain(error.message);
  } finally {
    stop.removeEventListener("click", onStop);
    progress.parentElement.hidden = true;
  }
}

for (const drop of form.querySelectorAll("[data-upload]")) {
  const input = drop.querySelector("input[type=file]");
  input.addEventListener("change", () => {
    if (input.files.length) take(drop, input.files[0]);
    input.value = "";
  });
  drop.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer.files.length) take(drop, event.dataTransfer.files[0]);
  });
}

for (const input of form.querySelectorAll("[data-find]")) findAmongMore(input);
form.addEventListener("input", (event) => {
  if (event.target.dataset.path) askSoon();
});
form.addEventListener("submit", start);
if ([...inputs()].some((input) => input.value)) askSoon(); // the browser has kept what was typed
