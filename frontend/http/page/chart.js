// Lines over time with both axes: values from zero to a round number, time from the chosen window to now.
import { colour, element, sized } from "./canvas.js";

const GAP_SECONDS = 5;

export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((step) => value <= step * power * 1.0001) * power;
}

// A box with a canvas and the words of its axes beside it, as elements: they are sharp, and can be read aloud.
export function axes(box, label) {
  const canvas = element("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  const made = { canvas, top: element("span", "top"), zero: element("span", "zero", "0"), from: element("span", "from"),
    to: element("span", "to", "now"), said: element("span", "said") };
  box.append(made.top, made.zero, canvas, made.from, made.to, made.said);
  return made;
}

export function grid(context, width, height) {
  context.strokeStyle = colour("line");
  context.lineWidth = 1;
  context.beginPath();
  for (const share of [0, 0.5, 1]) {
    const y = Math.round(share * (height - 1)) + 0.5;
    context.moveTo(0, y);
    context.lineTo(width, y);
  }
  for (const share of [0.25, 0.5, 0.75]) {
    const x = Math.round(share * width) + 0.5;
    context.moveTo(x, 0);
    context.lineTo(x, height);
  }
  context.stroke();
}

export class Chart {
  // `lines`: name of a value -> name of a colour; `format` says a value; `top`: a fixed upper end.
  constructor(box, label, lines, format, top = 0) {
    this.lines = Object.entries(lines);
    this.format = format;
    this.fixed = top;
    this.axes = axes(box, label);
    this.samples = [];
    this.axes.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.axes.canvas.addEventListener("pointerleave", () => (this.axes.said.textContent = ""));
  }

  // `samples`: of all charts, the oldest first, with `at` in seconds; `span`: seconds shown.
  draw(samples, span) {
    const { context, width, height } = sized(this.axes.canvas);
    const now = samples.at(-1).at;
    this.samples = samples.filter((sample) => sample.at > now - span - 2);
    this.span = span;
    const values = this.samples.flatMap((sample) => this.lines.map(([name]) => sample[name] ?? 0));
    const top = this.fixed || roundUp(Math.max(...values));
    this.axes.top.textContent = this.format(top);
    this.axes.from.textContent = `−${span / 60} min`;
    grid(context, width, height);
    const x = (sample) => width - ((now - sample.at) / span) * width;
    const y = (value) => height - 1 - (value / top) * (height - 2);
    this.lines.forEach(([name, hue], place) => this.line(context, name, colour(hue), x, y, place === 0 ? height : 0));
  }

  line(context, name, hue, x, y, ground) {
    context.strokeStyle = context.fillStyle = hue;
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    let run = [];
    const end = () => {
      if (run.length) this.stroke(context, run, ground);
      run = [];
    };
    let before = null;
    for (const sample of this.samples) {
      const value = sample[name];
      if (value === null || value === undefined || (before && sample.at - before.at > GAP_SECONDS)) end();
      before = sample;
      if (value !== null && value !== undefined) run.push([x(sample), y(value)]);
    }
    end();
  }

  stroke(context, run, ground) {
    context.beginPath();
    for (const [x, y] of run) context.lineTo(x, y);
    if (run.length === 1) context.lineTo(run[0][0] + 1.5, run[0][1]);
    context.stroke();
    if (!ground) return;
    context.lineTo(run.at(-1)[0], ground);
    context.lineTo(run[0][0], ground);
    context.globalAlpha = 0.14;
    context.fill();
    context.globalAlpha = 1;
  }

  point(event) {
    if (!this.samples.length) return;
    const now = this.samples.at(-1).at;
    const wanted = now - (1 - event.offsetX / this.axes.canvas.clientWidth) * this.span;
    const near = this.samples.reduce((best, one) => (Math.abs(one.at - wanted) < Math.abs(best.at - wanted) ? one : best));
    const said = this.lines.map(([name]) => (near[name] === null || near[name] === undefined ? "–" : this.format(near[name])));
    this.axes.said.textContent = `${new Date(near.at * 1000).toLocaleTimeString("en-GB")}  ${said.join(" / ")}`;
  }
}
