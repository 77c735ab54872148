// The pages of the KV cache: whose is each, as a field of cells by request or by address, with a legend that names them.
import { Cells } from "./cells.js";
import { colour, counted, element, unpacked, whole } from "./canvas.js";
import { css, keyOf, rgb } from "./palette.js";

const OWNER = 16;
const KINDS = ["free", "cached", "shared", "fenced"];
const MEANINGS = { free: "free", cached: "cached, nobody reads it", shared: "read by several", fenced: "fenced: a step may still touch it" };
const NAMED = 14;

export class Pool {
  constructor(at, palette) {
    this.at = at;
    this.palette = palette;
    this.cells = new Cells(at("pool-frame"), at("pool"), at("pool-length"));
    this.byRequest = true;
    this.chosen = null;
    this.codes = new Uint16Array();
    at("pool").addEventListener("pointermove", (event) => this.point(event));
    at("pool").addEventListener("pointerleave", () => (at("pool-hover").textContent = ""));
    at("zoom-in").addEventListener("click", () => this.zoom(2));
    at("zoom-out").addEventListener("click", () => this.zoom(0.5));
    at("zoom-fit").addEventListener("click", () => this.zoom(0));
    at("legend").addEventListener("click", (event) => this.choose(event.target.closest("button")?.dataset.key));
  }

  order(byRequest) {
    this.byRequest = byRequest;
    this.zoom(0);
  }

  zoom(factor) {
    this.cells.zoomTo(factor ? this.cells.zoom * factor : 1);
    this.paint();
    this.offerZoom();
  }

  offerZoom() {
    this.at("zoom-in").disabled = this.cells.isLargest;
    this.at("zoom-out").disabled = this.cells.isWhole;
    this.at("zoom-fit").disabled = this.cells.zoom === 1;
  }

  choose(key) {
    if (key === undefined) return;
    this.chosen = this.chosen === key ? null : key;
    this.name();
    this.paint();
  }

  draw(status) {
    const begun = performance.now();
    this.codes = new Uint16Array(unpacked(status.blocks));
    this.outputs = status.outputs;
    this.size = status.limits.block_size;
    const total = status.load.num_blocks;
    const part = this.codes.length < total ? `; the first ${whole(this.codes.length)} are drawn` : "";
    this.at("pool-count").textContent = total ? `${counted(total, "block")} of ${counted(this.size, "token")}${part}` : "";
    this.count();
    this.name();
    this.paint();
    this.offerZoom();
    this.at("pool").dataset.milliseconds = (performance.now() - begun).toFixed(1);
  }

  // Blocks of each kind and of each request: requests in order of their outputs, siblings together.
  count() {
    this.numbers = new Uint32Array(OWNER + this.outputs.length + 1);
    const most = this.numbers.length - 1;
    for (let block = 0; block < this.codes.length; block += 1) this.numbers[Math.min(this.codes[block], most)] += 1;
    this.owners = new Map();
    this.outputs.forEach((output, place) => {
      const blocks = this.numbers[OWNER + place];
      if (!blocks) return;
      const key = keyOf(output);
      const owner = this.owners.get(key) ?? { key, label: output.label, blocks: 0, codes: [] };
      owner.blocks += blocks;
      owner.codes.push(OWNER + place);
      this.owners.set(key, owner);
    });
  }

  // The places of all blocks sorted by whose they are: a counting sort, in the legend's order.
  sorted() {
    const rank = [...this.owners.values()].flatMap((owner) => owner.codes);
    const codes = [...rank, this.numbers.length - 1, 2, 3, 1, 0];
    const begins = new Uint32Array(Math.max(this.numbers.length, OWNER + 1));
    let begin = 0;
    for (const code of new Set(codes)) {
      begins[code] = begin;
      begin += this.numbers[code] ?? 0;
    }
    const order = new Uint32Array(this.codes.length);
    const most = this.numbers.length - 1;
    for (let block = 0; block < this.codes.length; block += 1) order[begins[Math.min(this.codes[block], most)]++] = block;
    return order;
  }

  paint() {
    if (!this.outputs) return;
    const colours = KINDS.map((kind) => rgb(colour(kind)));
    this.outputs.forEach((output, place) => (colours[OWNER + place] = this.palette.of(keyOf(output))));
    const most = this.numbers.length - 1;
    for (let code = 0; code <= 528; code += 1) colours[code] ??= rgb(colour("quiet"));
    const lit = this.chosen === null ? null : new Set(this.owners.get(this.chosen)?.codes ?? [KINDS.indexOf(this.chosen)]);
    if (lit?.has(-1)) this.chosen = null;
    // by request what nobody reads comes last: what is in use is seen at once, as large as it can be
    const fitted = this.codes.length - (this.byRequest ? this.numbers[0] + this.numbers[1] : 0);
    this.cells.show(this.codes, this.byRequest ? this.sorted() : null, colours, this.chosen === null ? null : lit, fitted);
  }

  name() {
    const owners = [...this.owners.values()].sort((one, other) => other.blocks - one.blocks);
    const items = owners.slice(0, NAMED).map((owner) => this.entry(owner.key, owner.label, owner.blocks, css(this.palette.of(owner.key))));
    const rest = owners.slice(NAMED);
    if (rest.length) items.push(element("li", "quiet", `${counted(rest.length, "other request")} with ${whole(rest.reduce((sum, one) => sum + one.blocks, 0))}`));
    for (const kind of ["shared", "fenced", "cached", "free"]) {
      items.push(this.entry(kind, MEANINGS[kind], this.numbers[KINDS.indexOf(kind)], colour(kind)));
    }
    this.renew(items);
  }

  // What did not change stays where it is, and keeps the keyboard's focus.
  renew(items) {
    const list = this.at("legend");
    const focused = document.activeElement?.closest?.("#legend button")?.dataset.key;
    list.replaceChildren(...items);
    if (focused) [...list.querySelectorAll("button")].find((one) => one.dataset.key === focused)?.focus();
  }

  entry(key, label, blocks, hue) {
    const item = element("li");
    const button = element("button");
    button.type = "button";
    button.dataset.key = key;
    button.title = label;
    button.setAttribute("aria-pressed", String(this.chosen === key));
    const swatch = element("i", "swatch");
    swatch.style.background = hue;
    button.append(swatch, element("span", "name", label), element("span", "number", whole(blocks)));
    item.append(button);
    return item;
  }

  point(event) {
    const block = this.cells.at(event);
    const code = this.codes[block];
    const output = this.outputs?.[code - OWNER];
    let said = "";
    if (block >= 0 && code < OWNER) said = `block ${whole(block)}: ${MEANINGS[KINDS[code]]}`;
    else if (block >= 0) said = `block ${whole(block)}: ${output ? `${output.label}${output.output_index ? ` #${output.output_index}` : ""}` : "a request further down the list"}`;
    this.at("pool-hover").textContent = said;
  }
}
