// Numbers as people read them. The server says the same (formats.py); a test holds the two together.

const SIZES = ["B", "kB", "MB", "GB", "TB", "PB"];

const three = (value) => value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
const whole = (value) => Number(value.toFixed(0));
const grouped = (value) => String(whole(value)).replace(/\B(?=(\d{3})+$)/g, ",");
const two = (value) => String(value).padStart(2, "0");

export function size(value) {
  let unit = 0;
  while (value >= 999.5 && unit < SIZES.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit ? three(value) : whole(value)} ${SIZES[unit]}`;
}

export function duration(value) {
  if (value < 59.5) return value >= 0.9995 || !value ? `${three(value)} s` : `${three(1000 * value)} ms`;
  const seconds = whole(value);
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${two(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${two(minutes % 60)} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

function small(value) {
  if (value === 0) return "0";
  const [mantissa, exponent] = value.toExponential(2).split("e");
  return `${mantissa}e${Number(exponent)}`;
}

export const FORMATS = {
  size,
  some: (value) => (value ? size(value) : "–"),
  rate: (value) => `${size(value)}/s`,
  count: grouped,
  loss: (value) => value.toFixed(4),
  share: (value) => `${whole(value * 100)} %`,
  percent: (value) => `${whole(value)} %`,
  per_second: (value) => (value >= 999.5 ? grouped(value) : three(value)),
  small,
  duration,
  celsius: (value) => `${whole(value)} °C`,
  steps: (value) =>
    value.total_steps ? `${grouped(value.step ?? 0)} of ${grouped(value.total_steps)}` : "–",
  used: (value) => size(value.total_bytes - value.free_bytes),
  text: String,
};

export const SHARES = {
  used: (value) => (value.total_bytes - value.free_bytes) / Math.max(1, value.total_bytes),
  steps: (value) => (value.step ?? 0) / Math.max(1, value.total_steps || 1),
  traffic(value) {
    const ceiling = value.calibration?.mixed_bytes_per_second;
    const now = value.traffic;
    return ceiling && now ? (now.read_bytes_per_second + now.write_bytes_per_second) / ceiling : null;
  },
  share: Number,
};

export const shown = (value, form, none = "not known") =>
  value === null || value === undefined ? none : FORMATS[form](value);

export function width(value, form) {
  const part = value === null || value === undefined ? 0 : (SHARES[form](value) ?? 0);
  return Number((100 * Math.min(1, Math.max(0, part))).toFixed(2));
}

export function pick(values, path) {
  for (const name of path.split(".")) {
    if (values === null || typeof values !== "object") return null;
    values = values[name] ?? null;
  }
  return values;
}
