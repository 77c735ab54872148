// What happened to one request, output by output. It follows the request while that is open, and stays when it has ended.
import { ask } from "./ask.js";
import { counted, element, seconds, whole } from "./canvas.js";

const PHASES = ["queue", "prefill", "decode"];
const WORDS = { queued: "queued", blocked: "held back", admitted: "admitted", chunk: "prompt", first_token: "first token",
  preempted: "preempted", restarted: "restarted", finished: "ended" };

function told(moment) {
  const tokens = moment.num_tokens ? counted(moment.num_tokens, "token") : "";
  const what = { admitted: "", first_token: "", finished: tokens && `${tokens} in all` }[moment.what] ?? tokens;
  return [what, moment.detail].filter(Boolean).join("; ");
}

export class Story {
  constructor(at, onClose) {
    Object.assign(this, { at, request: null, isOver: false, parts: new Map() });
    at("story-close").addEventListener("click", () => {
      this.request = null;
      at("story").hidden = true;
      onClose();
    });
  }

  async open(row) {
    Object.assign(this, { request: row, isOver: false, parts: new Map() });
    this.at("story-label").textContent = row.label;
    this.at("stories").replaceChildren();
    this.at("story-state").textContent = "";
    this.at("story").hidden = false;
    await this.follow();
    this.at("story").scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  async follow() {
    if (this.request === null || this.isOver) return;
    const { label, arrival } = this.request;
    try {
      const answer = await (await ask(`/v1/requests/${encodeURIComponent(label)}?arrival=${arrival}`)).json();
      if (this.request?.arrival !== arrival) return; // another one was opened meanwhile
      for (const story of answer.stories) this.part(story).show(story, answer.stories.length > 1);
      this.isOver = answer.stories.every((story) => story.state === "finished");
      this.at("story-state").textContent = this.isOver ? "ended" : "live";
      this.at("story-state").className = `pill ${this.isOver ? "over" : "ready"}`;
    } catch (error) {
      this.isOver = true;
      this.at("story-state").textContent = error.message;
      this.at("story-state").className = "pill over";
    }
  }

  part(story) {
    const known = this.parts.get(story.output_index);
    if (known) return known;
    const made = new Part(story);
    this.parts.set(story.output_index, made);
    this.at("stories").append(made.body);
    return made;
  }
}

class Part {
  constructor(story) {
    this.body = element("details");
    this.body.open = story.output_index === 0;
    this.head = element("summary");
    this.facts = element("dl", "facts");
    this.phases = element("div", "phases");
    this.phases.setAttribute("role", "img");
    this.key = element("p", "legend");
    this.list = element("ol", "moments");
    this.body.append(this.head, this.facts, this.phases, this.key, this.list);
    this.moments = "";
  }

  show(story, isOneOfMany) {
    const { usage } = story;
    this.head.textContent = `${isOneOfMany ? `output ${story.output_index}: ` : ""}${story.state}${story.ahead ? `, ${whole(story.ahead)} before it` : ""}`;
    const speed = usage.completion_tokens > 1 && usage.decode_seconds > 0 ? (usage.completion_tokens - 1) / usage.decode_seconds : 0;
    const facts = { prompt: whole(usage.prompt_tokens), cached: whole(usage.cached_tokens), generated: whole(usage.completion_tokens),
      speed: speed && `${speed.toFixed(1)}/s`, preempted: usage.num_preemptions, restarted: usage.num_restarts };
    const said = Object.entries(facts).filter(([, value]) => value !== 0);
    this.facts.replaceChildren(...said.map(([name, value]) => {
      const pair = element("div");
      pair.append(element("dt", "", name), element("dd", "", value));
      return pair;
    }));
    this.measure(usage);
    const now = JSON.stringify(story.moments);
    if (now === this.moments) return;
    this.moments = now;
    this.list.replaceChildren(...story.moments.map((moment) => {
      const item = element("li", moment.what);
      item.append(element("time", "", seconds(moment.seconds)), element("b", "", WORDS[moment.what] ?? moment.what), element("span", "", told(moment)));
      return item;
    }));
  }

  measure(usage) {
    const spent = PHASES.map((phase) => usage[`${phase}_seconds`]);
    const all = spent.reduce((sum, one) => sum + one, 0) || 1;
    this.phases.replaceChildren(...PHASES.map((phase, place) => {
      const bar = element("i", phase);
      bar.style.flexGrow = String(spent[place] / all);
      return bar;
    }));
    const words = PHASES.map((phase, place) => [phase, `${phase} ${seconds(spent[place])}`]);
    this.phases.setAttribute("aria-label", words.map(([, text]) => text).join(", "));
    this.key.replaceChildren(...words.flatMap(([phase, text]) => [element("i", `swatch ${phase}`), document.createTextNode(`${text} `)]));
  }
}
