// A list of the newest few, and a field beside it that finds the others by a part of their name.

import { FORMATS } from "./format.js";
import { api, complain } from "./page.js";

const FIND_MILLISECONDS = 250; // after the last key
const MOST = 20; // that are shown of what was found

export const fileOption = (file) => new Option(`${file.filename} · ${FORMATS.size(file.bytes)}`, file.id);

const LISTS = {
  files: { path: "/v1/files?purpose=fine-tune&", option: fileOption },
  models: { path: "/v1/models?", option: (model) => new Option(model.id, model.id) },
};

function inWords(text, { data, has_more: hasMore }) {
  if (!data.length) return `Nothing here has “${text}” in its name.`;
  if (hasMore) return `The first ${data.length} of those with “${text}” are listed; a longer part finds fewer.`;
  return data.length === 1 ? `One has “${text}” in its name.` : `${data.length} have “${text}” in their names.`;
}

// Let a search field fill the select that it belongs to. What is chosen there stays chosen.
export function findAmongMore(input) {
  const select = document.getElementById(input.dataset.find);
  const said = document.getElementById(`${input.dataset.find}-found`);
  const list = LISTS[input.dataset.list];
  const first = select.options[0]; // which chooses nothing
  const hint = said.textContent;
  let newest = null; // what is listed while nothing is looked for
  let timer = 0;
  let asking = null;

  function show(options) {
    const chosen = select.selectedOptions[0];
    const value = select.value;
    select.replaceChildren(...options);
    if (value && ![...select.options].some((one) => one.value === value)) first.after(chosen.cloneNode(true));
    select.value = value;
  }

  async function find() {
    clearTimeout(timer);
    asking?.abort();
    const text = input.value.trim();
    if (!text) {
      if (newest) show(newest);
      newest = null;
      said.textContent = hint;
      return;
    }
    asking = new AbortController();
    const asked = new URLSearchParams({ contains: text, limit: MOST });
    try {
      const answer = await api("GET", list.path + asked, undefined, { signal: asking.signal });
      newest ??= [...select.children];
      show([first, ...answer.data.map(list.option)]);
      said.textContent = inWords(text, answer);
    } catch (error) {
      if (error.name !== "AbortError") complain(error.message);
    }
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(find, FIND_MILLISECONDS);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== "ArrowDown") return;
    event.preventDefault(); // the form is not sent from here
    find().then(() => select.focus());
  });
}
