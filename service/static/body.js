// The form as the body of a create request.

const UNITS = { "": 1, b: 1, kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12, kib: 1024, mib: 1024 ** 2, gib: 1024 ** 3, tib: 1024 ** 4 };

function bytes(text) {
  const [, number, unit] = /^([\d.]+)\s*([a-z]*)$/i.exec(text) ?? [];
  const factor = UNITS[unit?.toLowerCase()];
  return number && factor ? Math.round(Number(number) * factor) : text;
}

// What stands in a field, as JSON has it; what cannot be read stays text, for the daemon to refuse by name.
export function valueOf(kind, text) {
  if (kind === "bytes") return bytes(text);
  if (kind === "boolean") return text === "true";
  if (kind === "integer" || kind === "number") return Number.isFinite(Number(text)) ? Number(text) : text;
  if (kind !== "json") return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

export function bodyOf(inputs) {
  const body = {};
  for (const input of inputs) {
    const text = input.value.trim();
    if (!text) continue;
    const names = input.dataset.path.split(".");
    const last = names.pop();
    let owner = body;
    for (const name of names) owner = owner[name] ??= {};
    owner[last] = valueOf(input.dataset.kind, text);
  }
  return inItsMethod(body);
}

// Settings that methods share stand on the form once, as those of supervised training.
function inItsMethod(body) {
  const { type, supervised, dpo } = body.method ?? {};
  if (type !== "dpo") return body;
  const hyperparameters = { ...supervised?.hyperparameters, ...dpo?.hyperparameters };
  return { ...body, method: { type, dpo: { hyperparameters } } };
}
