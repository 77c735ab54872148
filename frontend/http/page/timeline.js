// The latest steps, one bar each: what its time went into, and how many rows it ran.
import { colour, seconds, sized, whole } from "./canvas.js";
import { axes, grid, roundUp } from "./chart.js";

const KEPT = 240;
const PARTS = ["device", "schedule", "send", "idle"];

// an idle engine's pause between two requests would flatten everything else
const spent = (step) => PARTS.slice(0, 3).reduce((sum, part) => sum + step[`${part}_seconds`], 0);
const rows = (step) => step.num_decodes + step.num_prefills;

export class Timeline {
  constructor(box, count, hover, most) {
    this.axes = axes(box, "the latest steps: time of each part, and rows");
    this.axes.canvas.id = "timeline";
    this.count = count;
    this.hover = hover;
    this.most = most;
    this.steps = [];
    this.axes.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.axes.canvas.addEventListener("pointerleave", () => (hover.textContent = ""));
  }

  clear() {
    this.steps = [];
  }

  draw(fresh, now) {
    this.steps = [...this.steps, ...fresh].slice(-KEPT);
    const { context, width, height } = sized(this.axes.canvas);
    this.wide = width / KEPT;
    if (!this.steps.length) return;
    const top = roundUp(Math.max(...this.steps.map(spent)) * 1.1);
    const most = roundUp(Math.max(...this.steps.map(rows), 1));
    grid(context, width, height);
    const first = KEPT - this.steps.length;
    const hues = Object.fromEntries(PARTS.map((part) => [part, colour(part)]));
    this.steps.forEach((step, index) => {
      let y = height;
      for (const part of PARTS) {
        const tall = Math.min(y, (step[`${part}_seconds`] / top) * height);
        context.fillStyle = hues[part];
        context.fillRect((first + index) * this.wide, y - tall, Math.max(1, this.wide - 0.5), tall);
        y -= tall;
      }
    });
    context.strokeStyle = colour("rows");
    context.lineWidth = 1.5;
    context.beginPath();
    this.steps.forEach((step, index) => context.lineTo((first + index + 0.5) * this.wide, height - 2 - (rows(step) / most) * (height - 4)));
    context.stroke();
    const last = this.steps.at(-1);
    this.axes.top.textContent = seconds(top);
    this.most.textContent = `${whole(most)} rows`;
    this.axes.from.textContent = `−${seconds(now - this.steps[0].at)}`;
    this.axes.to.textContent = now - last.at > 2 ? `−${seconds(now - last.at)}` : "now";
    this.count.textContent = `the last ${this.steps.length}, up to number ${whole(last.step)}`;
  }

  point(event) {
    const step = this.steps[Math.floor(event.offsetX / this.wide) - (KEPT - this.steps.length)];
    if (!step) {
      this.hover.textContent = "";
      return;
    }
    const parts = PARTS.map((part) => `${part} ${seconds(step[`${part}_seconds`])}`).join(", ");
    this.hover.textContent = `step ${step.step}: ${step.num_decodes} decodes, ${step.num_prefills} prefills of ${step.num_prefill_tokens} tokens; ${parts}`;
  }
}
