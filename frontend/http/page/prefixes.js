// The tree of cached prefixes: from left to right along the tokens, a row for each branch, shared beginnings drawn once.
import { ask } from "./ask.js";
import { colour, counted, sized, unpacked, whole } from "./canvas.js";

const NOT_CACHED = -1;
const PERIOD = 3;

const kindOf = (readers) => (readers > 1 ? "shared" : readers === 1 ? "read" : "cached");

export class Prefixes {
  constructor(at) {
    this.at = at;
    this.polls = 0;
    this.drawn = [];
    at("tree").addEventListener("pointermove", (event) => this.point(event));
    at("tree").addEventListener("pointerleave", () => (at("tree-hover").textContent = ""));
    new ResizeObserver(() => this.tree && this.draw()).observe(at("tree"));
  }

  // Asked for only while it is looked at, and then not with every poll.
  async follow(size) {
    this.polls += 1;
    if (this.polls % PERIOD !== 1) return;
    const told = await (await ask("/v1/prefixes")).json();
    this.size = size;
    this.grow(new Int32Array(unpacked(told.parents)), new Uint16Array(unpacked(told.readers)));
    this.draw();
  }

  begin() {
    this.polls = 0;
  }

  // Children of each block as linked lists, then leaves below each, from the tips down to the roots.
  grow(parents, readers) {
    const number = parents.length;
    const [first, next] = [new Int32Array(number).fill(-1), new Int32Array(number).fill(-1)];
    const roots = [];
    for (let block = number - 1; block >= 0; block -= 1) {
      const parent = parents[block];
      if (parent === NOT_CACHED) continue;
      if (parent === block) roots.push(block);
      else [next[block], first[parent]] = [first[parent], block];
    }
    const order = [...roots];
    const depths = new Int32Array(number);
    for (let place = 0; place < order.length; place += 1) {
      for (let child = first[order[place]]; child >= 0; child = next[child]) {
        depths[child] = depths[order[place]] + 1;
        order.push(child);
      }
    }
    const leaves = new Int32Array(number);
    for (let place = order.length - 1; place >= 0; place -= 1) {
      const block = order[place];
      leaves[block] ||= 1;
      if (parents[block] !== block) leaves[parents[block]] += leaves[block];
    }
    this.tree = { readers, roots: roots.reverse(), first, next, leaves, depths, number: order.length };
  }

  draw() {
    const { context, width, height, ratio } = sized(this.at("tree"));
    if (!width) return;
    const { readers, roots, first, next, leaves, depths, number } = this.tree;
    const branches = roots.reduce((sum, root) => sum + leaves[root], 0);
    let longest = 0;
    let saved = 0;
    depths.forEach((depth) => (longest = Math.max(longest, depth + 1)));
    readers.forEach((count) => (saved += Math.max(0, count - 1)));
    const top = Math.max(1, longest);
    const hues = Object.fromEntries(["shared", "read", "cached"].map((kind) => [kind, colour(kind)]));
    const tall = branches ? Math.min(24, height / branches) : 0;
    this.drawn = [];
    const waiting = [];
    const ends = new Map();
    let y = 0;
    for (const root of roots) {
      waiting.push([root, 0, y]);
      y += leaves[root] * tall;
    }
    while (waiting.length) {
      const [begin, depth, low] = waiting.pop();
      let [end, length] = [begin, 1];
      const kind = kindOf(readers[begin]);
      while (first[end] >= 0 && next[first[end]] < 0 && kindOf(readers[first[end]]) === kind) [end, length] = [first[end], length + 1];
      const part = { x: (depth / top) * width, y: low, wide: (length / top) * width, tall: leaves[begin] * tall, depth, length, block: begin };
      const isThin = part.tall * ratio < 1; // what follows, and what a longer one covers, would not be seen
      const row = Math.floor(low * ratio);
      if (isThin && (ends.get(row) ?? -1) >= part.x + part.wide) continue;
      ends.set(row, part.x + part.wide);
      const gap = part.tall > 3 ? 1 : 0;
      context.fillStyle = hues[kind];
      context.fillRect(part.x, part.y, Math.max(1, part.wide - gap), Math.max(1 / ratio, part.tall - gap));
      this.drawn.push(part);
      if (isThin) continue;
      let below = low;
      for (let child = first[end]; child >= 0; child = next[child]) {
        waiting.push([child, depth + length, below]);
        below += leaves[child] * tall;
      }
    }
    this.at("tree-from").textContent = "0 tokens";
    this.at("tree-to").textContent = `${whole(top * this.size)} tokens`;
    this.at("tree-said").textContent = number
      ? `${counted(number, "cached block")} in ${branches === 1 ? "1 branch" : `${whole(branches)} branches`}, the longest of ${counted(longest * this.size, "token")}; sharing saves ${counted(saved, "block")}.`
      : "Nothing is cached.";
  }

  point(event) {
    const [x, y] = [event.offsetX, event.offsetY];
    const part = this.drawn.find((one) => x >= one.x && x < one.x + one.wide && y >= one.y && y < one.y + one.tall);
    if (!part) {
      this.at("tree-hover").textContent = "";
      return;
    }
    const readers = this.tree.readers[part.block];
    const ways = this.tree.leaves[part.block];
    const range = `tokens ${whole(part.depth * this.size)} to ${whole((part.depth + part.length) * this.size)}`;
    this.at("tree-hover").textContent = `${range}: ${readers ? `read by ${counted(readers, "output")}` : "cached, nobody reads it"}${ways > 1 ? `, ${whole(ways)} branches` : ""}`;
  }
}
