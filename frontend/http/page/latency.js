// Quantiles of the last ten seconds and output tokens per second, from two readings of /metrics.
const WINDOW = 10;
const TTFT = "quire_time_to_first_token_seconds_bucket";
const ITL = "quire_inter_token_latency_seconds_bucket";
const TOKENS = "quire_generation_tokens_total";

function parse(text) {
  const reading = { at: performance.now() / 1000, [TTFT]: new Map(), [ITL]: new Map(), tokens: 0 };
  for (const line of text.split("\n")) {
    if (line.startsWith("#")) continue;
    const space = line.lastIndexOf(" ");
    const name = line.slice(0, line.indexOf("{") < 0 ? space : line.indexOf("{"));
    const value = Number(line.slice(space + 1));
    if (name === TOKENS) reading.tokens += value;
    if (name !== TTFT && name !== ITL) continue;
    const bound = /le="([^"]+)"/.exec(line)[1];
    const key = bound === "+Inf" ? Infinity : Number(bound);
    reading[name].set(key, (reading[name].get(key) ?? 0) + value);
  }
  return reading;
}

// Linear within a bucket, as Prometheus' histogram_quantile does it.
function quantile(newest, oldest, share) {
  const bounds = [...newest.keys()].sort((a, b) => a - b);
  const counts = bounds.map((bound) => newest.get(bound) - (oldest.get(bound) ?? 0));
  const total = counts.at(-1) ?? 0;
  if (!(total > 0)) return null;
  const rank = share * total;
  const index = counts.findIndex((count) => count >= rank);
  if (bounds[index] === Infinity) return bounds[index - 1] ?? null;
  const low = index ? bounds[index - 1] : 0;
  const below = index ? counts[index - 1] : 0;
  return low + (bounds[index] - low) * ((rank - below) / (counts[index] - below || 1));
}

export class Latency {
  constructor() {
    this.readings = [];
  }

  read(text) {
    this.readings.push(parse(text));
    if (this.readings.length > WINDOW + 1) this.readings.shift();
    const newest = this.readings.at(-1);
    const oldest = this.readings[0];
    const before = this.readings.at(-3) ?? oldest;
    const both = (name) => [0.5, 0.99].map((share) => quantile(newest[name], oldest[name], share));
    const seconds = newest.at - before.at;
    return { ttft: both(TTFT), itl: both(ITL), tokensPerSecond: seconds > 0 ? (newest.tokens - before.tokens) / seconds : null };
  }
}
