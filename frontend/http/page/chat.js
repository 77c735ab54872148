// The playground: streams /v1/chat/completions.
import { ask } from "./ask.js";
import { Attachments } from "./attachments.js";

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const items = rest.split("\n\n");
    rest = items.pop();
    for (const item of items) {
      if (!item.startsWith("data: ") || item === "data: [DONE]") continue;
      const parsed = JSON.parse(item.slice(6));
      if (parsed.error) throw new Error(parsed.error.message);
      yield parsed;
    }
  }
}

export function startChat(at) {
  const attachments = new Attachments(at("attach"), at("files"));
  let history = [];
  let stopping = null;

  const turn = (kind, text) => {
    const made = document.createElement("p");
    made.className = kind;
    made.textContent = text;
    at("chat").append(made);
    at("chat").scrollTop = at("chat").scrollHeight;
    return made;
  };

  async function answer() {
    const shown = turn("turn assistant", "");
    const thought = document.createElement("span");
    thought.className = "thought";
    shown.append(thought);
    const text = document.createTextNode("");
    shown.append(text);
    const body = { messages: history, temperature: Number(at("temperature").value), max_tokens: Number(at("max-tokens").value),
      stream: true, stream_options: { include_usage: true } };
    const begun = performance.now();
    let first = null;
    let usage = null;
    const response = await ask("/v1/chat/completions",
      { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal: stopping.signal });
    for await (const chunk of events(response)) {
      usage = chunk.usage ?? usage;
      const delta = chunk.choices[0]?.delta ?? {};
      if (delta.reasoning_content) thought.textContent += delta.reasoning_content;
      if (delta.content) text.data += delta.content;
      if (first === null && (delta.content || delta.reasoning_content)) first = performance.now() - begun;
      at("chat").scrollTop = at("chat").scrollHeight;
    }
    history.push({ role: "assistant", content: text.data });
    const seconds = (performance.now() - begun) / 1000;
    const tokens = usage?.completion_tokens ?? 0;
    turn("figures", `${tokens} tokens in ${seconds.toFixed(2)} s, ${(tokens / seconds).toFixed(1)} tokens/s, the first after ${first === null ? "–" : Math.round(first)} ms`);
  }

  at("ask").addEventListener("submit", async (event) => {
    event.preventDefault();
    at("send").disabled = true; // before the files are read: nothing is sent meanwhile
    stopping = new AbortController();
    at("stop").disabled = false;
    const text = at("prompt").value;
    at("prompt").value = "";
    try {
      const { names, parts } = await attachments.take();
      stopping.signal.throwIfAborted();
      turn("turn user", [...names.map((name) => `[${name}] `), text].join(""));
      history.push({ role: "user", content: parts.length ? [...parts, { type: "text", text }] : text });
      await answer();
    } catch (error) {
      if (error.name === "AbortError") turn("figures", "stopped");
      else turn("turn error", error.message);
      if (history.at(-1)?.role === "user") history.pop();
    }
    at("send").disabled = false;
    at("stop").disabled = true;
    stopping = null;
  });
  at("stop").addEventListener("click", () => stopping?.abort());
  at("clear").addEventListener("click", () => {
    history = [];
    at("chat").replaceChildren();
  });
  at("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      if (!at("send").disabled) at("ask").requestSubmit();
    }
  });
  return attachments;
}
