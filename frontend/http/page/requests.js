// Every request that runs or waits; a click tells its story.
import { ask } from "./ask.js";
import { ownerColour } from "./pool.js";

const SHOWN = 100;

function cell(row, text) {
  const made = row.insertCell();
  made.textContent = text;
  return made;
}

export class Requests {
  constructor(at) {
    this.at = at;
    at("story-close").addEventListener("click", () => (at("story").hidden = true));
  }

  draw(outputs) {
    const body = document.createElement("tbody");
    body.id = "requests";
    for (const output of outputs.slice(0, SHOWN)) body.append(this.row(output));
    this.at("requests").replaceWith(body);
    this.at("no-requests").hidden = outputs.length > 0;
  }

  row(output) {
    const row = document.createElement("tr");
    row.tabIndex = 0;
    const name = cell(row, output.label + (output.output_index ? ` #${output.output_index}` : ""));
    name.style.boxShadow = `inset 4px 0 ${ownerColour(output.label)}`;
    name.style.paddingLeft = "10px";
    cell(row, output.state);
    const tokens = cell(row, "");
    const bar = document.createElement("progress");
    bar.max = output.num_prompt + output.max_tokens;
    bar.value = output.num_tokens;
    tokens.append(bar, `${output.num_prompt} + ${output.num_tokens - output.num_prompt}`);
    cell(row, output.cached_tokens);
    cell(row, output.num_blocks);
    cell(row, `${output.age_seconds.toFixed(1)} s`);
    cell(row, output.num_preemptions || "");
    row.addEventListener("click", () => this.explain(output.label));
    row.addEventListener("keydown", (event) => event.key === "Enter" && this.explain(output.label));
    return row;
  }

  async explain(label) {
    const list = this.at("moments");
    list.replaceChildren();
    this.at("story-label").textContent = label;
    this.at("story").hidden = false;
    try {
      const told = await (await ask(`/v1/requests/${encodeURIComponent(label)}`)).json();
      for (const story of told.stories) {
        for (const moment of story.moments) {
          const item = document.createElement("li");
          const which = told.stories.length > 1 ? `#${story.output_index} ` : "";
          const tokens = moment.num_tokens ? `, ${moment.num_tokens} tokens` : "";
          item.textContent = `${which}${moment.seconds.toFixed(3)} s ${moment.what}${tokens}${moment.detail ? `: ${moment.detail}` : ""}`;
          list.append(item);
        }
      }
    } catch (error) {
      const item = document.createElement("li");
      item.textContent = error.message;
      list.append(item);
    }
  }
}
