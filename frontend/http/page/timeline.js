// The latest steps, one bar each: what its time went into, and how many rows it ran.
import { colour, sized } from "./spark.js";

const KEPT = 240;
const PARTS = ["device", "schedule", "send", "idle"];

export class Timeline {
  constructor(canvas, count, hover) {
    this.canvas = canvas;
    this.count = count;
    this.hover = hover;
    this.steps = [];
    canvas.addEventListener("mousemove", (event) => this.point(event));
    canvas.addEventListener("mouseleave", () => (hover.textContent = ""));
  }

  clear() {
    this.steps = [];
  }

  draw(fresh) {
    this.steps.push(...fresh);
    this.steps = this.steps.slice(-KEPT);
    const { context, width, height } = sized(this.canvas);
    this.wide = width / KEPT;
    if (!this.steps.length) return;
    // an idle engine's pause between two requests would flatten everything else
    const spent = (step) => PARTS.slice(0, 3).reduce((sum, part) => sum + step[`${part}_seconds`], 0);
    const top = Math.max(...this.steps.map(spent)) * 1.25;
    const rows = (step) => step.num_decodes + step.num_prefills;
    const most = Math.max(...this.steps.map(rows), 1);
    this.steps.forEach((step, index) => {
      let y = height;
      for (const part of PARTS) {
        const tall = Math.min(y, (step[`${part}_seconds`] / top) * height);
        context.fillStyle = colour(part);
        context.fillRect(index * this.wide, y - tall, Math.max(1, this.wide - 0.5), tall);
        y -= tall;
      }
    });
    context.strokeStyle = colour("rows");
    context.lineWidth = 1.5;
    context.beginPath();
    this.steps.forEach((step, index) => context.lineTo((index + 0.5) * this.wide, height - 3 - (rows(step) / most) * (height - 8)));
    context.stroke();
    const last = this.steps.at(-1);
    this.count.textContent = `${last.step}; the tallest of the last ${this.steps.length} took ${(Math.max(...this.steps.map(spent)) * 1000).toFixed(1)} ms`;
  }

  point(event) {
    const step = this.steps[Math.floor(event.offsetX / this.wide)];
    if (!step) {
      this.hover.textContent = "";
      return;
    }
    const parts = PARTS.map((part) => `${part} ${(step[`${part}_seconds`] * 1000).toFixed(2)} ms`).join(", ");
    this.hover.textContent = `step ${step.step}: ${step.num_decodes} decodes, ${step.num_prefills} prefills of ${step.num_prefill_tokens} tokens; ${parts}`;
  }
}
