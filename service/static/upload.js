// Files to the daemon with progress: in one request, or in parts that are sent again when one is lost.

import { Refusal, api, refusalOf } from "./page.js";

const PART_BYTES = 32 * 1024 * 1024;
const TRIES = 3;

// XMLHttpRequest, since fetch does not tell how much of a body has been sent.
function send(path, form, { onSent, signal }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    request.setRequestHeader("x-headrace-page", "1");
    request.upload.onprogress = (event) => onSent(event.loaded);
    request.onload = async () => {
      const answer = new Response(request.response, { status: request.status });
      if (answer.ok) resolve(await answer.json());
      else reject(await refusalOf(answer));
    };
    request.onerror = () => reject(new Refusal(0, { message: "The connection broke off." }));
    request.onabort = () => reject(new DOMException("stopped", "AbortError"));
    signal.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}

async function sendPart(upload, part, options) {
  for (let left = TRIES - 1; ; left -= 1) {
    const form = new FormData();
    form.append("data", part);
    try {
      return await send(`/v1/uploads/${upload.id}/parts`, form, options);
    } catch (error) {
      if (error.name === "AbortError" || left === 0 || (error.status >= 400 && error.status < 500)) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

// The file object of the API. `onShare` hears how much is sent, from 0 to 1.
export async function upload(file, { onShare, signal }) {
  if (file.size <= PART_BYTES) {
    const form = new FormData();
    form.append("purpose", "fine-tune");
    form.append("file", file);
    return send("/v1/files", form, { signal, onSent: (bytes) => onShare(Math.min(1, bytes / Math.max(1, file.size))) });
  }
  const made = await api("POST", "/v1/uploads", {
    bytes: file.size, filename: file.name, mime_type: "text/jsonl", purpose: "fine-tune",
  }, { signal });
  try {
    const ids = [];
    for (let start = 0; start < file.size; start += PART_BYTES) {
      const onSent = (bytes) => onShare(Math.min(1, (start + bytes) / file.size));
      ids.push((await sendPart(made, file.slice(start, start + PART_BYTES), { signal, onSent })).id);
    }
    return (await api("POST", `/v1/uploads/${made.id}/complete`, { part_ids: ids }, { signal })).file;
  } catch (error) {
    api("POST", `/v1/uploads/${made.id}/cancel`).catch(() => {}); // it ends by itself within the hour
    throw error;
  }
}
