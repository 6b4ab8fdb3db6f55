// Server-sent events with a state that people see, and a new start wherever the browser gives up.

import { toLogin } from "./page.js";

const AGAIN_MILLISECONDS = [1000, 2000, 5000];

function showState(state) {
  const sign = document.getElementById("live");
  if (!sign || sign.dataset.state === state) return;
  sign.dataset.state = state;
  sign.querySelector(".live-word").textContent = {
    connecting: "connecting", live: "live", away: "reconnecting", over: "finished",
  }[state];
}

// Follow `url(lastId)`: `handlers` maps names of events to functions of (data, id).
// A handler that returns false ends the following, and so does `isOver`, asked when the stream breaks off.
export function follow(url, handlers, isOver = async () => false) {
  let source = null;
  let lastId = null;
  let failures = 0;
  let timer = 0;

  const stop = (state) => {
    clearTimeout(timer);
    source?.close();
    source = null;
    showState(state);
  };

  const start = () => {
    source = new EventSource(url(lastId));
    source.onopen = () => {
      failures = 0;
      showState("live");
    };
    source.onerror = () => {
      showState("away");
      if (source?.readyState === EventSource.CLOSED) retry();
    };
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        if (event.lastEventId) lastId = event.lastEventId;
        if (handle(JSON.parse(event.data)) === false) stop("over");
      });
    }
  };

  // The browser has given up, as it does for any answer that is no stream: see why, and try again.
  const retry = () => {
    source = null;
    const wait = AGAIN_MILLISECONDS[Math.min(failures, AGAIN_MILLISECONDS.length - 1)];
    failures += 1;
    timer = setTimeout(async () => {
      const answer = await fetch("/status", { method: "GET" }).catch(() => null);
      if (answer?.status === 401) toLogin();
      else if (answer?.ok && (await isOver())) stop("over");
      else if (answer?.ok) start();
      else retry();
    }, wait);
  };

  addEventListener("pagehide", () => stop("away"));
  addEventListener("pageshow", (event) => {
    if (event.persisted) start();
  });
  start();
}
