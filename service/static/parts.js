// Parts of the page that the server renders anew when something other than a number has changed.

import { localTimes } from "./bind.js";
import { complain, toLogin } from "./page.js";

const PARTS = "[data-part]";
const rendered = new Map(); // what the server said last, since scripts have changed it since
let running = null;
let again = false;

const remember = (root) => {
  for (const part of root.querySelectorAll(PARTS)) rendered.set(part.dataset.part, part.outerHTML);
};
remember(document);

// Fetch this page again and put in the parts that are different. Answers when it is done.
export function refresh(after = () => {}) {
  if (running) {
    again = true;
    return running;
  }
  running = swap().then(after).catch((error) => complain(error.message)).finally(() => {
    running = null;
    if (again) {
      again = false;
      refresh(after);
    }
  });
  return running;
}

async function swap() {
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (answer.redirected && new URL(answer.url).pathname === "/login") return toLogin();
  if (!answer.ok) throw new Error("The daemon did not show this page again.");
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of fresh.querySelectorAll(PARTS)) {
    const name = part.dataset.part;
    if (rendered.get(name) === part.outerHTML) continue;
    rendered.set(name, part.outerHTML);
    replace(document.querySelector(`[data-part="${name}"]`), document.adoptNode(part));
  }
}

function replace(old, fresh) {
  const focus = old.contains(document.activeElement) ? document.activeElement.id : "";
  for (const open of old.querySelectorAll("details[id][open]")) {
    const same = fresh.querySelector(`#${CSS.escape(open.id)}`);
    if (same) same.open = true;
  }
  localTimes(fresh);
  old.replaceWith(fresh);
  if (focus) document.getElementById(focus)?.focus();
}
