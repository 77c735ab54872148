// Asks the engine once a second, while somebody looks, and lets each part of the page draw what it says.
import { ask } from "./ask.js";
import { bytes, counted, element, pair, percent, seconds, short, whole } from "./canvas.js";
import { Chart } from "./chart.js";
import { startChat } from "./chat.js";
import { Latency } from "./latency.js";
import { keyOf, Palette } from "./palette.js";
import { Pool } from "./pool.js";
import { Prefixes } from "./prefixes.js";
import { Requests } from "./requests.js";
import { Story } from "./story.js";
import { Timeline } from "./timeline.js";

const PERIOD_MS = 1000;
const KEPT_SECONDS = 900;
const at = (id) => document.getElementById(id);

const palette = new Palette();
const pool = new Pool(at, palette);
const prefixes = new Prefixes(at);
const timeline = new Timeline(at("steps"), at("step-count"), at("step-hover"), at("most-rows"));
const latency = new Latency();
const story = new Story(at, () => requests.mark(""));
const requests = new Requests(at, palette, (row) => {
  requests.mark(row.request);
  story.open(row);
});
const charts = Object.entries({
  tokens: [{ tokens: "accent" }, short],
  prompt: [{ prompt: "accent" }, short],
  ttft: [{ ttft: "accent", ttft99: "second" }, seconds],
  itl: [{ itl: "accent", itl99: "second" }, seconds],
  running: [{ running: "accent" }, short],
  waiting: [{ waiting: "accent" }, short],
  kv: [{ kv: "accent" }, percent, 1],
  hits: [{ hits: "accent" }, percent, 1],
}).map(([name, rest]) => new Chart(at(`chart-${name}`), at(`chart-${name}`).closest("figure").ariaLabel, ...rest));

let samples = [];
let epoch = -1;
let lastStep = -1;
let isAsking = false;
let timer = 0;

function showFacts({ model, limits, load }) {
  const tokens = model.num_kv_tokens ? `${whole(model.num_kv_tokens)} tokens, ${bytes(model.kv_bytes)} of ${model.kv_dtype || model.dtype}` : "";
  const facts = { model: model.architecture, weights: model.weight_bytes ? `${bytes(model.weight_bytes)} of ${model.dtype}` : "",
    quantization: model.quantization, context: limits.max_model_len ? counted(limits.max_model_len, "token") : "",
    "KV cache": load.num_blocks ? tokens : "", ranks: model.num_ranks ? `${model.num_ranks} on ${model.device}` : "" };
  const said = JSON.stringify(facts);
  if (at("facts").dataset.said === said) return;
  at("facts").dataset.said = said;
  at("facts").replaceChildren(...Object.entries(facts).filter(([, value]) => value).map(([name, value]) => {
    const fact = element("div");
    fact.append(element("dt", "", name), element("dd", "", value));
    return fact;
  }));
}

function showFigures(status, figures) {
  const { load } = status;
  const kv = load.num_blocks ? 1 - load.free_blocks / load.num_blocks : 0;
  const hits = load.prefix_queries ? load.prefix_hits / load.prefix_queries : 0;
  const tokens = figures.tokensPerSecond ?? 0;
  at("tokens-per-second").textContent = tokens.toFixed(tokens < 100 ? 1 : 0);
  at("prompt-tokens").textContent = short(status.rates.prefill_tokens_per_second);
  at("ttft").textContent = pair(figures.ttft);
  at("itl").textContent = pair(figures.itl);
  at("running").textContent = whole(load.num_running);
  at("max-running").textContent = whole(status.limits.max_num_seqs);
  at("waiting").textContent = whole(load.num_waiting);
  at("waiting-tokens").textContent = whole(load.waiting_tokens);
  at("kv").textContent = percent(kv);
  at("hits").textContent = percent(hits);
  samples.push({ at: Date.now() / 1000, tokens, prompt: status.rates.prefill_tokens_per_second, ttft: figures.ttft[0], ttft99: figures.ttft[1],
    itl: figures.itl[0], itl99: figures.itl[1], running: load.num_running, waiting: load.num_waiting, kv, hits });
  samples = samples.filter((sample) => sample.at > samples.at(-1).at - KEPT_SECONDS - 2);
  drawCharts();
}

function drawCharts() {
  if (samples.length) for (const chart of charts) chart.draw(samples, Number(at("span").value));
}

function showState(status) {
  at("model").textContent = status.model_names[0] ?? "";
  at("state").textContent = status.load.state;
  at("state").className = `pill ${status.load.state}`;
  at("detail").textContent = status.state_detail ?? "";
  at("version").textContent = `quire ${status.version}`;
  document.title = `${status.model_names[0] ?? "engine"} · quire`;
}

async function show(status, metrics) {
  palette.keep(status.outputs.filter((output) => output.state === "running").map(keyOf));
  showState(status);
  showFacts(status);
  showFigures(status, latency.read(metrics));
  chat.offer(status.model.modalities);
  pool.draw(status);
  timeline.draw(status.steps, status.now);
  at("tree-view").hidden = !status.load.cached_blocks && view() !== "tree";
  await Promise.all([requests.follow(status), story.follow(), view() === "tree" ? prefixes.follow(status.limits.block_size) : null]);
}

const view = () => document.querySelector("input[name=view]:checked").value;

function changeView() {
  at("field").hidden = view() === "tree";
  at("prefixes").hidden = view() !== "tree";
  if (view() === "tree") prefixes.begin();
  else pool.order(view() === "requests");
}

async function look() {
  const [status, metrics] = await Promise.all([
    ask(`/v1/status?after_step=${lastStep}`).then((response) => response.json()),
    ask("/metrics").then((response) => response.text()),
  ]);
  if (status.load.epoch !== epoch) {
    // another worker group counts its steps from 1 again
    if (epoch >= 0) status.steps = [];
    epoch = status.load.epoch;
    lastStep = -1;
    timeline.clear();
  }
  if (status.steps.length) lastStep = status.steps.at(-1).step;
  await show(status, metrics);
}

async function poll() {
  clearTimeout(timer);
  if (isAsking || document.hidden) return;
  isAsking = true;
  try {
    await look();
    at("problem").hidden = true;
  } catch (error) {
    at("problem").textContent = `The engine does not answer: ${error.message}`;
    at("problem").hidden = false;
    at("state").textContent = "lost";
    at("state").className = "pill lost";
    epoch = -1;
    lastStep = -1;
  }
  isAsking = false;
  document.body.dataset.polls = String(Number(document.body.dataset.polls ?? 0) + 1);
  timer = setTimeout(poll, PERIOD_MS);
}

for (const one of document.querySelectorAll("input[name=view]")) one.addEventListener("change", changeView);
for (const one of document.querySelectorAll("input[name=list]")) one.addEventListener("change", () => requests.choose(one.value));
at("span").addEventListener("change", drawCharts);
document.addEventListener("visibilitychange", poll);
const chat = startChat(at);
changeView();
poll();
