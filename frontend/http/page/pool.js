// The block pool: one cell for each page, coloured by who holds it.
import { colour, sized } from "./spark.js";

const OWNER = 16;
const KINDS = ["free", "cached", "shared", "fenced"];

// Golden-angle steps, so that neighbours in the list differ; the label decides, so that a request keeps its colour.
function hue(label) {
  let hash = 2166136261;
  for (const char of label) hash = Math.imul(hash ^ char.codePointAt(0), 16777619) >>> 0;
  return (hash * 137.508) % 360;
}

export const ownerColour = (label) => `hsl(${hue(label)} 60% 52%)`;

function codes(base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  return new Uint16Array(bytes.buffer);
}

export class Pool {
  constructor(canvas, count, hover) {
    this.canvas = canvas;
    this.count = count;
    this.hover = hover;
    this.cells = new Uint16Array();
    canvas.addEventListener("mousemove", (event) => this.point(event));
    canvas.addEventListener("mouseleave", () => (hover.textContent = ""));
  }

  draw(status) {
    this.cells = codes(status.blocks);
    this.outputs = status.outputs;
    const total = status.load.num_blocks;
    this.count.textContent = `${total} blocks` + (this.cells.length < total ? `, the first ${this.cells.length} shown` : "");
    const { context, width, height } = sized(this.canvas);
    const area = this.cells.length ? (width * height) / this.cells.length : 1;
    let side = Math.max(2, Math.min(34, Math.floor(Math.sqrt(area))));
    while (side > 2 && Math.ceil(this.cells.length / Math.floor(width / side)) * side > height) side -= 1;
    this.side = side;
    this.columns = Math.max(1, Math.floor(width / side));
    const fixed = KINDS.map((kind) => colour(kind));
    const gap = side > 5 ? 1 : 0;
    this.cells.forEach((code, index) => {
      context.fillStyle = code < OWNER ? fixed[code] : ownerColour(this.outputs[code - OWNER]?.label ?? "");
      context.fillRect((index % this.columns) * side, Math.floor(index / this.columns) * side, side - gap, side - gap);
    });
  }

  point(event) {
    const index = Math.floor(event.offsetY / this.side) * this.columns + Math.floor(event.offsetX / this.side);
    const code = this.cells[index];
    if (code === undefined) this.hover.textContent = "";
    else if (code < OWNER) this.hover.textContent = `block ${index}: ${KINDS[code]}`;
    else this.hover.textContent = `block ${index}: ${this.outputs[code - OWNER]?.label}`;
  }
}
