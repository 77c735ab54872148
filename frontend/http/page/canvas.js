// What all drawings share: a canvas in device pixels, the colours of the style sheet, numbers in words.

export function sized(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height, ratio };
}

// Colours of the style sheet, each read once for each theme: asking makes the browser compute all styles.
const colours = new Map();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => colours.clear());

export function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return colours.get(name);
}

// A loop: the ways without one take ten times as long for 100 KB.
export function unpacked(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place += 1) bytes[place] = text.charCodeAt(place);
  return bytes.buffer;
}

export function element(tag, kind = "", text = "") {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.textContent = text;
  return made;
}

export const whole = (value) => Math.round(value).toLocaleString("en").replaceAll(",", "\u202f");
export const counted = (value, noun) => `${whole(value)} ${noun}${value === 1 ? "" : "s"}`;
export const percent = (share) => `${(share * 100).toFixed(share < 0.1 && share > 0 ? 1 : 0)} %`;

export function short(value) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return `${Number((value / size).toPrecision(3))}${unit}`;
  }
  return String(Number(value.toPrecision(3)));
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${Number((value * 1000).toPrecision(3))} ms`;
  if (value < 100) return `${Number(value.toPrecision(3))} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;
}

// Two times, their unit once where it is the same.
export function pair([low, high]) {
  const [one, other] = [seconds(low), seconds(high)];
  const unit = other.replace(/^[\d.]+/, "");
  return `${unit && one.endsWith(unit) && one !== other ? one.slice(0, -unit.length) : one} / ${other}`;
}

export function bytes(value) {
  for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return `${value} B`;
}
