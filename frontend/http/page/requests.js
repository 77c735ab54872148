// The requests that run or wait, and those that ended; a row opens the story.
import { ask } from "./ask.js";
import { counted, element, seconds, whole } from "./canvas.js";
import { css, keyOf } from "./palette.js";

const MAX_ENDED = 1024;
const SHOWN = 50;

const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

// Rows by key: those that stay keep their place in the document, and with it the keyboard's focus.
class Rows {
  constructor(body, columns, onOpen) {
    Object.assign(this, { body, columns, onOpen, rows: new Map() });
  }

  draw(items, opened) {
    const keys = new Set(items.map((item) => item.key));
    for (const [key, row] of this.rows) if (!keys.has(key)) this.drop(key, row);
    items.forEach((item, place) => {
      const row = this.rows.get(item.key) ?? this.make(item);
      item.cells.forEach((content, column) => this.fill(row.cells[column + 1], content));
      row.cells[0].style.boxShadow = item.hue ? `inset 4px 0 ${item.hue}` : "none";
      row.classList.toggle("opened", item.request === opened);
      if (this.body.rows[place] !== row) this.body.insertBefore(row, this.body.rows[place] ?? null);
    });
  }

  drop(key, row) {
    this.rows.delete(key);
    row.remove();
  }

  make(item) {
    const row = element("tr");
    const head = element("th");
    head.scope = "row";
    const name = element("div", "name");
    const button = element("button", "link", item.label);
    button.type = "button";
    button.title = item.label;
    name.append(button, element("span", "quiet", item.index ? `#${item.index}` : ""));
    head.append(name);
    row.append(head, ...this.columns.map((kind) => element("td", kind)));
    row.addEventListener("click", () => this.onOpen(item));
    this.rows.set(item.key, row);
    return row;
  }

  fill(cell, content) {
    if (typeof content === "string") {
      if (cell.textContent !== content) cell.textContent = content;
      return;
    }
    const bar = cell.querySelector("progress") ?? cell.appendChild(element("progress"));
    const text = cell.querySelector("span") ?? cell.appendChild(element("span"));
    [bar.max, bar.value] = [content.most, content.done];
    bar.setAttribute("aria-label", "tokens so far");
    text.textContent = content.text;
  }
}

export class Requests {
  constructor(at, palette, onOpen) {
    Object.assign(this, { at, palette, open: [], ended: [], seen: 0, epoch: -1, shows: "open", most: SHOWN, opened: "" });
    this.live = new Rows(at("requests"), ["", "", "wide-only", "wide-only", "", "wide-only"], onOpen);
    this.past = new Rows(at("ended"), ["", "", "wide-only", "wide-only", "wide-only", ""], onOpen);
    at("filter").addEventListener("input", () => this.paint());
    at("more").addEventListener("click", () => {
      this.most += 200;
      this.paint();
    });
  }

  choose(shows) {
    this.shows = shows;
    this.most = SHOWN;
    this.paint();
  }

  mark(request) {
    this.opened = request;
    this.paint();
  }

  async follow(status) {
    this.open = status.outputs;
    this.number = status.load.num_running + status.load.num_waiting;
    if (status.load.epoch !== this.epoch) [this.epoch, this.seen] = [status.load.epoch, 0];
    if (status.load.num_finished !== this.seen) await this.catchUp();
    this.paint();
  }

  async catchUp() {
    const told = await (await ask(`/v1/requests?after=${this.seen}`)).json();
    if (!this.seen) this.ended = [];
    this.seen = told.count;
    const offset = Date.now() / 1000 - told.now;
    const fresh = told.outputs.reverse().map((output) => ({ ...output, at: output.at + offset }));
    this.ended = [...fresh, ...this.ended].slice(0, MAX_ENDED);
  }

  paint() {
    const isOpen = this.shows === "open";
    const wanted = this.at("filter").value.trim().toLowerCase();
    const found = (isOpen ? this.open : this.ended).filter((output) => output.label.toLowerCase().includes(wanted));
    const rows = found.slice(0, this.most).map((output) => (isOpen ? this.liveRow(output) : this.pastRow(output)));
    (isOpen ? this.live : this.past).draw(rows, this.opened);
    this.at("open-table").hidden = !isOpen || !rows.length;
    this.at("ended-table").hidden = isOpen || !rows.length;
    this.at("open-count").textContent = whole(this.number ?? this.open.length);
    this.at("ended-count").textContent = whole(this.ended.length);
    this.at("no-requests").hidden = rows.length > 0;
    const none = isOpen ? "Nothing runs and nothing waits." : "Nothing has ended yet.";
    this.at("no-requests").textContent = wanted ? `No request here has “${wanted}” in its id.` : none;
    this.at("more").hidden = found.length <= rows.length;
    this.at("more").textContent = `${counted(found.length - rows.length, "more row")}`;
  }

  liveRow(output) {
    const drawn = output.num_tokens - output.num_prompt;
    const tokens = { most: output.num_prompt + output.max_tokens, done: output.num_tokens, text: `${whole(output.num_prompt)} + ${whole(drawn)}` };
    const cells = [output.state, tokens, whole(output.cached_tokens), whole(output.num_blocks), seconds(output.age_seconds), whole(output.num_preemptions)];
    return this.row(output, cells, output.state === "running" ? css(this.palette.of(keyOf(output))) : "");
  }

  pastRow(output) {
    const { usage } = output;
    const speed = usage.decode_seconds > 0 && usage.completion_tokens > 1 ? `${((usage.completion_tokens - 1) / usage.decode_seconds).toFixed(1)}/s` : "–";
    const first = usage.completion_tokens ? seconds(usage.queue_seconds + usage.prefill_seconds) : "–";
    const cells = [output.reason, `${whole(usage.prompt_tokens)} + ${whole(usage.completion_tokens)}`, whole(usage.cached_tokens), first, speed, clock(output.at)];
    return this.row(output, cells, "");
  }

  row(output, cells, hue) {
    return { key: `${keyOf(output)} ${output.output_index}`, request: keyOf(output), label: output.label, index: output.output_index, arrival: output.arrival, cells, hue };
  }
}
