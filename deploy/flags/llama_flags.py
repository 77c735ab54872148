"""Flags of llama.cpp's `llama-server`: those that mean an option of ours, those that change no answer, and the rest."""

from quire.deploy.flags.meaning import Meaning, always, count, layers, names, reasoning, sampling, tokens, top_k
from quire.deploy.flags.vllm_flags import BARE, VllmFlag, speed

_IN_REQUESTS = "send it with requests"
_NO_DRAFTS = "quire does not speculate yet"
_NO_ADAPTERS = "quire serves no adapters yet"
_NO_SAMPLER = "quire has no such sampler; leave it out"
_ONE_DEVICE = "a model is on one device as a whole; choose one with --device, or use --quantization"
_ONE_MODEL = "an engine serves one model; start one `quire serve` for each"
_PREFIXES = "equal beginnings of prompts are always shared; see --enable-prefix-caching"
_ROPE = "set rope_scaling or rope_theta with --hf-overrides"
_LOG = "the log goes to standard output; see --log-level"
_READ_ONCE = "weights are read into memory once and stay"
_CORES = "each worker is pinned to its share of the cores; see --num-threads"
_HUB = "write the hub id as MODEL"
_RANKED = "rerankers and embedding models rank by themselves: --task pooling"
SWITCHED = ("on", "off", "auto", "true", "false", "0", "1")


def _always(why: str) -> VllmFlag:
    return VllmFlag(why, (BARE,), bare=True)


LLAMA_FLAGS: dict[str, VllmFlag] = {
    # options of ours
    "alias": VllmFlag("--served-model-name", also=("-a",), means=Meaning("served_model_name", names)),
    "chat-template-file": VllmFlag("--chat-template", means=Meaning("chat_template")),
    "ctx-size": VllmFlag(
        "--max-model-len; behind --parallel N a Nth of it, without --kv-unified",
        also=("-c",),
        means=Meaning("max_model_len", count),
    ),
    "embedding": VllmFlag("--task embed", bare=True, means=always("task", "embed")),
    "embeddings": VllmFlag("--task embed", bare=True, means=always("task", "embed")),
    "gpu-layers": VllmFlag("0: --device cpu; -1, 99: all", means=Meaning("device", layers)),
    "kv-unified": VllmFlag("requests always share one cache", bare=True, also=("-kvu",), means=always("", "on")),
    "min-p": VllmFlag("a default of requests: --override-generation-config", means=sampling("min_p")),
    "n-gpu-layers": VllmFlag("0: --device cpu; -1, 99: all", also=("-ngl",), means=Meaning("device", layers)),
    "n-predict": VllmFlag(
        "a default of requests: max_new_tokens of --override-generation-config",
        also=("--predict",),
        means=sampling("max_new_tokens", tokens),
    ),
    "parallel": VllmFlag("--max-num-seqs", also=("-np",), means=Meaning("max_num_seqs", count)),
    "reasoning-format": VllmFlag("none: --reasoning-parser off", means=Meaning("reasoning_parser", reasoning)),
    "repeat-penalty": VllmFlag(
        "a default of requests: --override-generation-config", means=sampling("repetition_penalty")
    ),
    "rerank": VllmFlag(_RANKED, bare=True, means=always("task", "pooling")),
    "reranking": VllmFlag(_RANKED, bare=True, means=always("task", "pooling")),
    "ssl-cert-file": VllmFlag("--ssl-certfile", means=Meaning("ssl_certfile")),
    "ssl-key-file": VllmFlag("--ssl-keyfile", means=Meaning("ssl_keyfile")),
    "temp": VllmFlag(
        "a default of requests: --override-generation-config", also=("--temperature",), means=sampling("temperature")
    ),
    "threads": VllmFlag("--num-threads", also=("-t",), means=Meaning("num_threads", count)),
    "top-k": VllmFlag("a default of requests: --override-generation-config", means=sampling("top_k", top_k)),
    "top-p": VllmFlag("a default of requests: --override-generation-config", means=sampling("top_p")),
    # no effect
    "escape": _always("prompts come with requests"),
    "jinja": _always("chat templates are always Jinja"),
    "metrics": _always("/metrics is always there"),
    "no-context-shift": _always("a context is never shifted"),
    "no-mmproj": _always("GGUF files are read for text alone"),
    "props": _always("/props is read only"),
    "slots": _always("/slots is always there"),
    "webui": _always("the page at / is always there"),
    # changes no answer
    "batch-size": speed("use --max-num-batched-tokens for the tokens of one step", "-b"),
    "cache-prompt": speed(_PREFIXES, bare=True),
    "cache-ram": speed(_PREFIXES, "-cram"),
    "cache-reuse": speed(_PREFIXES),
    "check-tensors": speed("every tensor is checked as it is read", bare=True),
    "cont-batching": speed("requests always share steps", "-cb", bare=True),
    "cpu-mask": speed(_CORES, "-C"),
    "cpu-range": speed(_CORES, "-Cr"),
    "cpu-strict": speed(_CORES),
    "ctx-checkpoints": speed(_PREFIXES),
    "defrag-thold": speed("blocks need no moving", "-dt"),
    "direct-io": speed(_READ_ONCE, "-dio", bare=True),
    "flash-attn": VllmFlag("attention is always computed in tiles", SWITCHED, speed=True, also=("-fa",)),
    "keep": speed("a context is never shifted"),
    "log-colors": speed(_LOG),
    "log-disable": speed(_LOG, bare=True),
    "log-file": speed(_LOG),
    "log-prefix": speed(_LOG, bare=True),
    "log-timestamps": speed(_LOG, bare=True),
    "mmap": speed(_READ_ONCE, bare=True),
    "no-cont-batching": speed("requests always share steps", "-nocb", bare=True),
    "no-flash-attn": speed("attention is always computed in tiles", bare=True),
    "no-mmap": speed(_READ_ONCE, bare=True),
    "no-perf": speed("/metrics is always there", bare=True),
    "no-repack": speed("weights lie as their kernel reads them", "-nr", bare=True),
    "no-slots": speed("/slots shows no text, and its labels to administrators", bare=True),
    "no-warmup": speed("a first step is always run before requests are taken", bare=True),
    "no-webui": speed("the page at / is always there", bare=True),
    "numa": speed(_CORES),
    "perf": speed("/metrics is always there", bare=True),
    "poll": speed("workers wait as the scheduler's messages come"),
    "prio": speed("set priorities with nice"),
    "slot-prompt-similarity": speed(_PREFIXES, "-sps"),
    "swa-full": speed("blocks behind a window are given back", bare=True),
    "threads-batch": speed("use --num-threads for all work of a worker", "-tb"),
    "threads-http": speed("use --frontends for more of them"),
    "timeout": speed("a request says timeout_seconds; --drain-timeout is for the end", "-to"),
    "ubatch-size": speed("use --max-num-batched-tokens for the tokens of one step", "-ub"),
    "verbose": speed("use --log-level debug", "-v", bare=True),
    "verbosity": speed("use --log-level", "-lv"),
    "warmup": speed("a first step is always run before requests are taken", bare=True),
    # refused
    "api-prefix": VllmFlag("let the reverse proxy strip the prefix"),
    "cache-type-k": VllmFlag("use --kv-cache-dtype fp8, or on CPUs int8", ("f16", "bf16"), also=("-ctk",)),
    "cache-type-v": VllmFlag("use --kv-cache-dtype fp8, or on CPUs int8", ("f16", "bf16"), also=("-ctv",)),
    "chat-template-kwargs": VllmFlag("send chat_template_kwargs with the request"),
    "context-shift": VllmFlag("a context is never shifted: an answer ends with it", bare=True),
    "control-vector": VllmFlag(_NO_ADAPTERS),
    "cpu-moe": VllmFlag(_ONE_DEVICE, bare=True, also=("-cmoe",)),
    "draft-max": VllmFlag(_NO_DRAFTS, also=("--draft", "--draft-n")),
    "draft-min": VllmFlag(_NO_DRAFTS),
    "grammar": VllmFlag(_IN_REQUESTS),
    "grammar-file": VllmFlag(_IN_REQUESTS),
    "hf-file": VllmFlag("write the file's path as MODEL", also=("-hff",)),
    "hf-repo": VllmFlag(_HUB, also=("-hf", "-hfr")),
    "hf-repo-draft": VllmFlag(_NO_DRAFTS, also=("-hfd",)),
    "ignore-eos": VllmFlag(_IN_REQUESTS, bare=True),
    "json-schema": VllmFlag(_IN_REQUESTS),
    "logit-bias": VllmFlag(_IN_REQUESTS),
    "lora": VllmFlag(_NO_ADAPTERS),
    "lora-scaled": VllmFlag(_NO_ADAPTERS),
    "main-gpu": VllmFlag("choose devices with CUDA_VISIBLE_DEVICES", ("0",), also=("-mg",)),
    "mmproj": VllmFlag("GGUF files are read for text alone; for images give a directory of safetensors"),
    "model-draft": VllmFlag(_NO_DRAFTS, also=("-md",)),
    "model-url": VllmFlag("download it, and write its path as MODEL", also=("-mu",)),
    "models-dir": VllmFlag(_ONE_MODEL),
    "models-preset": VllmFlag(_ONE_MODEL),
    "n-cpu-moe": VllmFlag(_ONE_DEVICE, ("0",), also=("-ncmoe",)),
    "no-cache-prompt": VllmFlag("use --no-enable-prefix-caching", bare=True),
    "no-jinja": VllmFlag("chat templates are always Jinja; leave it out", bare=True),
    "no-kv-offload": VllmFlag(_ONE_DEVICE, bare=True, also=("-nkvo",)),
    "offline": VllmFlag("set HF_HUB_OFFLINE=1 in the environment", bare=True),
    "override-kv": VllmFlag("set fields with --hf-overrides"),
    "override-tensor": VllmFlag(_ONE_DEVICE, also=("-ot",)),
    "path": VllmFlag("quire serves no files; use a reverse proxy"),
    "pooling": VllmFlag("the pooling is that of the checkpoint's files; leave it out"),
    "reasoning-budget": VllmFlag("send max_tokens, or reasoning_effort none, with requests", ("-1",)),
    "rope-freq-base": VllmFlag(_ROPE),
    "rope-freq-scale": VllmFlag(_ROPE),
    "rope-scale": VllmFlag(_ROPE),
    "slot-save-path": VllmFlag("slots are neither saved nor restored: equal prefixes are found by themselves"),
    "special": VllmFlag("send skip_special_tokens: false with requests", bare=True, also=("-sp",)),
    "split-mode": VllmFlag("use --tensor-parallel-size, which shares every layer", ("none",), also=("-sm",)),
    "tensor-split": VllmFlag("every rank has an equal share; use --tensor-parallel-size", also=("-ts",)),
    **{name: VllmFlag(_IN_REQUESTS, ("0", "0.0")) for name in ("presence-penalty", "frequency-penalty")},
    **{name: VllmFlag(_NO_SAMPLER, ("0", "0.0")) for name in ("mirostat", "xtc-probability", "dry-multiplier")},
    **{name: VllmFlag(_NO_SAMPLER, ("0", "0.0")) for name in ("dynatemp-range", "adaptive-target")},
    "repeat-last-n": VllmFlag("a penalty looks at the whole context; leave it out", ("-1",)),
    "samplers": VllmFlag("the order of samplers is fixed; leave it out"),
    "typical": VllmFlag(_NO_SAMPLER, ("1", "1.0")),
}
