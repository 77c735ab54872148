// Asks the engine once a second and draws what it says. Three parts draw: pool.js, timeline.js, requests.js; chat.js is the playground.
import { ask } from "./ask.js";
import { startChat } from "./chat.js";
import { Latency } from "./latency.js";
import { Pool } from "./pool.js";
import { Requests } from "./requests.js";
import { Spark } from "./spark.js";
import { Timeline } from "./timeline.js";

const PERIOD_MS = 1000;
const at = (id) => document.getElementById(id);
const rounded = (value) => (value === null ? "–" : value.toFixed(value < 10 ? 1 : 0));
const times = ([low, high]) => (high === null || high < 1 ? `${rounded(low && low * 1000)} / ${rounded(high && high * 1000)} ms` : `${rounded(low)} / ${rounded(high)} s`);
const percent = (share) => `${(share * 100).toFixed(share < 0.1 && share > 0 ? 1 : 0)} %`;

const pool = new Pool(at("pool"), at("pool-count"), at("pool-hover"));
const timeline = new Timeline(at("timeline"), at("step-count"), at("step-hover"));
const requests = new Requests(at);
const latency = new Latency();
const sparks = Object.fromEntries(
  ["tokens", "ttft", "itl", "running", "waiting", "kv", "hits"].map((name) => [name, new Spark(at(`spark-${name}`))]),
);
let epoch = -1;
let lastStep = -1;

function show(status, figures) {
  const load = status.load;
  at("model").textContent = status.model_names[0] ?? "";
  at("state").textContent = load.state;
  at("state").className = `pill ${load.state}`;
  at("detail").textContent = status.state_detail ?? "";
  at("version").textContent = `quire ${status.version}`;

  const busy = load.num_blocks ? 1 - load.free_blocks / load.num_blocks : 0;
  const hits = load.prefix_queries ? load.prefix_hits / load.prefix_queries : 0;
  const tokens = figures.tokensPerSecond ?? 0;
  at("tokens-per-second").textContent = tokens.toFixed(tokens < 100 ? 1 : 0);
  at("ttft").textContent = times(figures.ttft);
  at("itl").textContent = times(figures.itl);
  at("running").textContent = load.num_running;
  at("max-running").textContent = status.limits.max_num_seqs;
  at("waiting").textContent = load.num_waiting;
  at("waiting-tokens").textContent = load.waiting_tokens;
  at("kv").textContent = percent(busy);
  at("hits").textContent = percent(hits);
  const points = { tokens, ttft: figures.ttft[0], itl: figures.itl[0], running: load.num_running, waiting: load.num_waiting, kv: busy, hits };
  for (const [name, value] of Object.entries(points)) sparks[name].add(value);

  pool.draw(status);
  timeline.draw(status.steps, status.now);
  requests.draw(status.outputs);
}

async function poll() {
  try {
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
    show(status, latency.read(metrics));
    at("problem").hidden = true;
  } catch (error) {
    at("problem").textContent = `The engine does not answer: ${error.message}`;
    at("problem").hidden = false;
    at("state").textContent = "lost";
    at("state").className = "pill lost";
    epoch = -1;
    lastStep = -1;
  }
  document.body.dataset.polls = String(Number(document.body.dataset.polls ?? 0) + 1);
  setTimeout(poll, PERIOD_MS);
}

startChat(at);
poll();
