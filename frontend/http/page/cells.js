// A field of square cells, as many as fit, drawn through an image of one pixel per cell: tens of thousands in milliseconds.
import { colour, sized } from "./canvas.js";
import { rgb } from "./palette.js";

const SIDES = [24, 16, 12, 8, 6, 4, 3, 2, 1.5, 1];
const LARGEST = SIDES[0];
const GAP_FROM = 6;
const DIMMED = 0.14;

const packed = ([red, green, blue]) => (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
const toward = (one, ground, share) => one.map((value, channel) => Math.round(ground[channel] + (value - ground[channel]) * share));

export class Cells {
  // `frame` scrolls; it holds the canvas, which stays in sight, and `length`, which is as long as the field.
  constructor(frame, canvas, length) {
    Object.assign(this, { frame, canvas, length, zoom: 1, codes: new Uint16Array(), order: null, colours: [], lit: null, fitted: 0 });
    this.image = document.createElement("canvas");
    this.waits = false;
    frame.addEventListener("scroll", () => this.later());
    new ResizeObserver(() => this.later()).observe(frame);
  }

  // `codes`: of each block; `order`: the block at each place, null for their own; `colours`: [r, g, b] of each code;
  // `lit`: the set of codes that are not dimmed, null for all; `fitted`: places that are seen at once without a zoom.
  show(codes, order, colours, lit, fitted) {
    Object.assign(this, { codes, order, colours, lit, fitted });
    this.draw();
  }

  zoomTo(zoom) {
    const share = this.frame.scrollTop / Math.max(1, this.frame.scrollHeight);
    this.zoom = zoom;
    this.draw();
    this.frame.scrollTop = share * this.frame.scrollHeight;
  }

  get isLargest() {
    return this.side >= LARGEST;
  }

  get isWhole() {
    return !this.beyond;
  }

  later() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      this.draw();
    });
  }

  // The side of a cell: of a few sizes, so that it changes rarely, the largest that fits, times the zoom.
  measure(width, height, ratio) {
    const rows = (side, number) => Math.ceil(number / Math.max(1, Math.floor(width / side)));
    const whole = (side) => Math.max(1, Math.round(side * ratio)) / ratio;
    const fits = (side) => rows(whole(side), this.fitted) * whole(side) <= height;
    this.side = whole(Math.min(LARGEST, (SIDES.find(fits) ?? SIDES.at(-1)) * this.zoom));
    this.columns = Math.max(1, Math.floor(width / this.side));
    this.rows = rows(this.side, this.codes.length);
    const beyond = Math.max(0, Math.ceil(this.rows * this.side - height));
    if (this.beyond !== beyond) this.length.style.height = `${(this.beyond = beyond)}px`;
  }

  draw() {
    const { context, width, height, ratio } = sized(this.canvas);
    if (!width) return;
    this.measure(width, height, ratio);
    if (!this.codes.length) return;
    this.first = Math.min(Math.floor(this.frame.scrollTop / this.side), Math.max(0, this.rows - 1));
    const shown = Math.min(this.rows - this.first, Math.ceil(height / this.side) + 1);
    this.paint(shown);
    const top = this.first * this.side - this.frame.scrollTop;
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, 0, 0, this.columns, shown, 0, top, this.columns * this.side, shown * this.side);
    if (this.side >= GAP_FROM) this.rule(context, top, shown);
  }

  paint(shown) {
    const { image, columns, order, codes, colours, lit } = this;
    if (image.width !== columns || image.height < shown) [image.width, image.height] = [columns, shown];
    const ground = rgb(colour("panel"));
    const ready = new Uint32Array(colours.length);
    colours.forEach((one, code) => (ready[code] = packed(!lit || lit.has(code) ? one : toward(one, ground, DIMMED))));
    const context = image.getContext("2d");
    const data = context.createImageData(columns, shown);
    const pixels = new Uint32Array(data.data.buffer);
    const begin = this.first * columns;
    const end = Math.min(codes.length, begin + pixels.length);
    for (let place = begin; place < end; place += 1) pixels[place - begin] = ready[codes[order ? order[place] : place]];
    context.putImageData(data, 0, 0);
  }

  rule(context, top, shown) {
    context.fillStyle = colour("panel");
    const [right, bottom] = [this.columns * this.side, top + shown * this.side];
    for (let column = 1; column <= this.columns; column += 1) context.fillRect(column * this.side - 1, top, 1, bottom - top);
    for (let row = 1; row <= shown; row += 1) context.fillRect(0, top + row * this.side - 1, right, 1);
  }

  // The block under the pointer, or -1.
  at(event) {
    const column = Math.floor(event.offsetX / this.side);
    const place = Math.floor((event.offsetY + this.frame.scrollTop) / this.side) * this.columns + column;
    if (!(column < this.columns) || place >= this.codes.length) return -1;
    return this.order ? this.order[place] : place;
  }
}
