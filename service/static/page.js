// What every page does: theme, sign-out, local times, calls to the API and their refusals.

import { localTimes } from "./bind.js";

const say = (text, kind = "info") => {
  const region = document.getElementById("said");
  const line = document.createElement("p");
  line.className = `said said-${kind}`;
  line.textContent = text;
  region.replaceChildren(line);
  if (kind === "info") setTimeout(() => line.remove(), 6000);
};

export const tell = (text) => say(text);
export const complain = (text) => say(text, "error");

export function toLogin() {
  location.assign(`/login?next=${encodeURIComponent(location.pathname)}`);
}

export class Refusal extends Error {
  constructor(status, error) {
    super(error?.hint ? `${error.message} ${error.hint}` : (error?.message ?? `HTTP ${status}`));
    this.status = status;
    this.param = error?.param ?? null;
  }
}

export async function refusalOf(response) {
  if (response.status === 401) toLogin();
  const body = await response.json().catch(() => null);
  return new Refusal(response.status, body?.error);
}

// A call to the API. The header shows that it comes from this page and not from another site's.
export async function api(method, path, body, { signal } = {}) {
  const headers = { "x-headrace-page": "1" };
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, { message: "The daemon does not answer." });
  }
  if (!response.ok) throw await refusalOf(response);
  return response.status === 204 ? null : response.json();
}

function toggleTheme(button) {
  const root = document.documentElement;
  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const show = () => button.setAttribute("aria-pressed", String(dark()));
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
    show();
  });
  show();
}

async function signOut() {
  await api("POST", "/logout");
  location.assign("/login");
}

toggleTheme(document.getElementById("theme"));
document.getElementById("sign-out")?.addEventListener("click", () => signOut().catch((e) => complain(e.message)));
localTimes(document);
