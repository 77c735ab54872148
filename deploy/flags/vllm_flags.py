"""Flags of `vllm serve`, of old releases too, that quire has under no name.

Those that change nothing here are taken; those that could only change how fast a thing is done are taken with a line
that says what happens instead; the rest are refused with the way out. Flags of the same meaning are spellings in
`quire.deploy.flags.options`.
"""

from dataclasses import dataclass

from quire.deploy.flags.meaning import Meaning
from quire.deploy.flags.sizes import parse_number
from quire.deploy.flags.task_flags import MEANT

BARE = "true"
"""Value of a flag that has none on the command line."""


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """A flag of another engine alone. `same`: the values with which quire behaves as it would; others are refused."""

    why: str
    same: tuple[str, ...] = ()
    bare: bool = False
    speed: bool = False
    """Any value is taken, and `why` is said: it could only change how fast or with what memory a thing is done."""
    also: tuple[str, ...] = ()
    """Other spellings of the flag."""
    means: Meaning | None = None
    """The option of ours that it is; None: there is none."""


def _always(why: str) -> VllmFlag:
    return VllmFlag(why, (BARE,), bare=True)


def _never(why: str, *also: str) -> VllmFlag:
    return VllmFlag(why, bare=True, also=also)


def speed(why: str, *also: str, bare: bool = False) -> VllmFlag:
    return VllmFlag(why, bare=bare, speed=True, also=also)


_NO_ADAPTERS = "quire serves no adapters yet"
_NO_CORS_DETAIL = "--allowed-origins decides alone; an allowed origin may use every method and header"
_NO_SHARED_CONTEXT = "quire shares no context over devices; use --tensor-parallel-size, which shares every layer"
_ONE_HOST = "quire runs on one host; start one `quire serve` per host behind a load balancer"
_NO_DRAFTS = "quire does not speculate yet"
_NOT_LOGGED = "requests are never logged"
_NO_CODE = "quire imports no code named on the command line"
_NO_REPLICAS = "quire has no data parallelism; start one `quire serve` per replica behind a load balancer"
_ON_DEVICE = "keys and values stay on the device; see --kv-cache-dtype, which halves them"
_NO_EMBEDS = "rows that a client made are not taken; send the text or image itself"
_NO_STATE = "quire serves no models that keep a state beside keys and values"
_ONE_KERNEL = "quire has one kernel for each device and operation"
_GRAMMARS = "grammars are always compiled by llguidance"
_GRAPHS = "the sizes of captured graphs follow --max-num-seqs"


def _each(why: str, *names: str) -> dict[str, VllmFlag]:
    """Flags with a value that are refused for one reason."""
    return {name: VllmFlag(why) for name in names}


NEWER: dict[str, VllmFlag] = {
    # options of ours
    "shutdown-timeout": VllmFlag("--drain-timeout", means=Meaning("drain_timeout", parse_number)),
    # no effect
    "disable-chunked-mm-input": _always("an image is always encoded whole"),
    "disable-hybrid-kv-cache-manager": speed("blocks behind a window are given back", bare=True),
    "no-enable-prompt-tokens-details": speed("usage always tells the cached tokens", bare=True),
    # one value has no effect
    "config-format": VllmFlag("config.json is read", ("auto", "hf")),
    "kv-offloading-size": VllmFlag(_ON_DEVICE, ("0", "0.0")),
    "logprobs-mode": VllmFlag("there is one kind of logprobs; leave it out"),
    "scheduler-cls": VllmFlag(_NO_CODE, ("auto",)),
    "worker-cls": VllmFlag(_NO_CODE, ("auto",)),
    # changes no answer
    **{name: speed(_GRAPHS) for name in ("cudagraph-capture-sizes", "max-cudagraph-capture-size")},
    **{name: speed(_ONE_KERNEL) for name in ("linear-backend", "mm-encoder-attn-backend", "moe-backend")},
    "disable-access-log-for-endpoints": speed("calls are not logged"),
    "disable-async-output-proc": speed("steps always overlap", bare=True),
    "ignore-patterns": speed("only what is read is downloaded"),
    "no-async-scheduling": speed("steps always overlap", bare=True),
    "numa-bind": speed("each worker is pinned to its share of the cores", bare=True),
    "performance-mode": speed("see deploy/TUNING.md"),
    "prefix-caching-hash-algo": speed("prefixes are always known by SHA-256"),
    "renderer-num-workers": speed("templates are rendered in processes of their own; see --frontends"),
    "safetensors-load-strategy": speed("every rank reads its own share"),
    "skip-mm-profiling": speed("memory is always measured with the largest image", bare=True),
    "tokenizer-pool-size": speed("long texts are tokenized in processes, others in threads; see --frontends"),
    "use-tqdm-on-load": speed("the start says how far it is", bare=True),
    # refused
    **_each(
        _NO_ADAPTERS, "default-mm-loras", "lora-target-modules", "max-prompt-adapters", "qlora-adapter-name-or-path"
    ),
    **_each(_NO_CODE, "additional-config", "io-processor-plugin", "logits-processor-pattern", "worker-extension-cls"),
    **_each(f"{_NO_CODE}; see --reasoning-parser", "reasoning-parser-plugin"),
    **_each(
        _NO_REPLICAS,
        *(f"data-parallel-{what}" for what in ("address", "backend", "rank", "rpc-port", "size-local", "start-rank")),
    ),
    **_each(_NO_DRAFTS, "ngram-prompt-lookup-max", "speculative-draft-tensor-parallel-size"),
    **_each(_NO_STATE, "mamba-block-size", "mamba-cache-dtype", "mamba-cache-mode", "mamba-ssm-cache-dtype"),
    **_each("quire keeps KV memory in one engine; leave it out", "ec-transfer-config", "weight-transfer-config"),
    **_each("there are no kinds of all-to-all: see --enable-expert-parallel", "all2all-backend", "eplb-config"),
    "attention-config": VllmFlag(_ONE_KERNEL),
    "code-revision": VllmFlag("no code of a checkpoint is run; leave it out"),
    "collect-detailed-traces": VllmFlag("--otlp-traces-endpoint alone traces requests"),
    "data-parallel-external-lb": _never(_NO_REPLICAS),
    "data-parallel-hybrid-lb": _never(_NO_REPLICAS),
    "enable-dbo": _never("steps already overlap with planning; leave it out"),
    "enable-eplb": _never("experts stay where --enable-expert-parallel deals them"),
    "enable-fault-tolerance": _never("workers that die are always replaced; see --max-restarts"),
    "enable-force-include-usage": _never("send stream_options.include_usage with requests"),
    "enable-log-outputs": _never("answers never reach the log; use --otlp-traces-endpoint and request ids"),
    "enable-lora-bias": _never(_NO_ADAPTERS),
    "enable-prompt-embeds": _never(_NO_EMBEDS),
    "enable-sleep-mode": _never("an engine keeps its memory; stop it, and start it again"),
    "exclude-tools-when-tool-choice-none": _never("tools stay in the prompt; leave them out of requests"),
    "hf-config-path": VllmFlag("write the directory with config.json as MODEL; see --hf-overrides"),
    "kernel-config": VllmFlag(_ONE_KERNEL),
    "kv-events-config": VllmFlag("quire publishes no events of its cache; see /metrics and quire top"),
    "kv-offloading-backend": VllmFlag(_ON_DEVICE),
    "log-config-file": VllmFlag("use --log-level"),
    "mm-encoder-only": _never("a model is served whole"),
    "model-loader-extra-config": VllmFlag("every rank reads its own share; leave it out"),
    "override-neuron-config": VllmFlag("devices are CPUs and NVIDIA's GPUs; see --device"),
    "override-pooler-config": VllmFlag("the pooling is that of the checkpoint's files"),
    "pooler-config": VllmFlag("the pooling is that of the checkpoint's files"),
    "profiler-config": VllmFlag("see quire bench worker"),
    "return-tokens-as-token-ids": _never("send return_tokens_as_token_ids with requests"),
    "skip-tokenizer-init": _never("every model has its tokenizer; token ids go to /inference/v1/generate"),
    "ssl-ciphers": VllmFlag("the ciphers are those of the TLS library; use a reverse proxy for others"),
    "tokens-only": _never("every route is there; token ids go to /inference/v1/generate"),
    "tool-server": VllmFlag("tools are called by clients"),
}
"""Flags that came later, or went."""

VLLM_FLAGS: dict[str, VllmFlag] = {
    # no effect
    "async-scheduling": _always("steps always overlap"),
    "disable-fastapi-docs": _always("there are no such pages"),
    "disable-log-requests": _always(_NOT_LOGGED),
    "disable-uvicorn-access-log": _always("calls are not logged"),
    "enable-prompt-tokens-details": _always("usage always tells the cached tokens"),
    "enable-request-id-headers": _always("every answer has x-request-id"),
    "enable-server-load-tracking": _always("/load always tells"),
    "enable-ssl-refresh": _always("certificates are always read again when their files change"),
    "interleave-mm-strings": _always("an image is where its message has it"),
    "no-enable-log-requests": _always(_NOT_LOGGED),
    "trust-remote-code": _always("no code of a checkpoint is run; known architectures need none, others are refused"),
    "uvicorn-log-level": VllmFlag("use --log-level", ("debug", "info", "warning", "error", "critical", "trace")),
    # one value has no effect
    "allowed-headers": VllmFlag(_NO_CORS_DETAIL, ('["*"]',)),
    "allowed-methods": VllmFlag(_NO_CORS_DETAIL, ('["*"]',)),
    "chat-template-content-format": VllmFlag("found out from the template", ("auto",)),
    "cpu-offload-gb": VllmFlag("weights stay on the device; use more devices or --quantization", ("0",)),
    "data-parallel-size": VllmFlag(_NO_REPLICAS, ("1",), also=("-dp",)),
    "decode-context-parallel-size": VllmFlag(_NO_SHARED_CONTEXT, ("1",), also=("-dcp",)),
    "distributed-executor-backend": VllmFlag("workers are processes of this host", ("mp",)),
    "guided-decoding-backend": VllmFlag("grammars are always compiled by llguidance", ("auto", "guidance")),
    "long-prefill-token-threshold": VllmFlag(
        "half of every step goes to the shortest prompts, whatever their length; see --max-num-partial-prefills", ("0",)
    ),
    "max-logprobs": VllmFlag("a request may always ask for 20 logprobs of a token", ("20",)),
    "max-long-partial-prefills": VllmFlag(
        "no length is long by itself: half of every step goes to the shortest prompts; see --max-num-partial-prefills",
        ("1",),
    ),
    "nnodes": VllmFlag(f"{_ONE_HOST}; llama-server's -n is --n-predict", ("1",), also=("-n",)),
    "node-rank": VllmFlag(_ONE_HOST, ("0",), also=("-r",)),
    "pipeline-parallel-size": VllmFlag(
        "quire has no pipeline parallelism; --tensor-parallel-size shares every layer", ("1",), also=("-pp",)
    ),
    "prefill-context-parallel-size": VllmFlag(_NO_SHARED_CONTEXT, ("1",), also=("-pcp",)),
    "response-role": VllmFlag("answers are the assistant's", ("assistant",)),
    "ssl-cert-reqs": VllmFlag("--ssl-ca-certs alone makes clients show a certificate", ("0",)),
    "tokenizer-mode": VllmFlag("tokenizer.json is read", ("auto", "hf")),
    # changes no answer
    "attention-backend": speed("quire has one attention kernel for each device"),
    "cuda-graph-sizes": speed("the sizes of captured graphs follow --max-num-seqs"),
    "disable-cascade-attn": speed("there is no such kernel", bare=True),
    "disable-log-stats": speed("one line every 10 s of traffic; --log-stats-interval 0 ends it", bare=True),
    "disable-custom-all-reduce": speed("sums over ranks are always NCCL's", bare=True),
    "disable-frontend-multiprocessing": speed("frontends are always processes; see --frontends", bare=True),
    "engine-use-ray": speed("workers are processes of this host", bare=True),
    "disable-mm-preprocessor-cache": speed("decoded images are kept in files; see --media-store-bytes", bare=True),
    "max-context-len-to-capture": speed("graphs do not depend on the length of a context"),
    "max-parallel-loading-workers": speed("every rank loads its own share, all at once"),
    "max-seq-len-to-capture": speed("graphs do not depend on the length of a context"),
    "mm-processor-cache-gb": speed("decoded images are kept in files; see --media-store-bytes"),
    "mm-processor-cache-type": speed("decoded images are kept in files; see --media-store-bytes"),
    "mm-shm-cache-max-object-size-mb": speed("decoded images are kept in files; see --media-store-bytes"),
    "multi-step-stream-outputs": speed("every step is streamed", bare=True),
    "num-lookahead-slots": speed("blocks are taken when a step needs them"),
    "num-scheduler-steps": speed("every step is planned, while the one before it runs"),
    "preemption-mode": speed("a preempted request is always computed again"),
    "scheduler-delay-factor": speed("prompts are never held back"),
    "swap-space": speed("nothing is swapped: a preempted request is computed again"),
    "use-v2-block-manager": speed("there is one block manager", bare=True),
    "worker-use-ray": speed("workers are processes of this host", bare=True),
    # refused
    "allow-credentials": _never("browsers send no cookies here; use keys"),
    "compilation-config": VllmFlag("--enforce-eager is the only choice", also=("-cc",)),
    "default-chat-template-kwargs": VllmFlag("send chat_template_kwargs with the request"),
    "download-dir": VllmFlag("set HF_HOME in the environment"),
    "enable-log-requests": _never("prompts never reach the log; use --otlp-traces-endpoint and request ids"),
    "enable-lora": _never(_NO_ADAPTERS),
    "enable-reasoning": _never("reasoning is split off without it; see --reasoning-parser"),
    "headless": _never(_ONE_HOST),
    "lora-modules": VllmFlag(_NO_ADAPTERS),
    "fully-sharded-loras": _never(_NO_ADAPTERS),
    "long-lora-scaling-factors": VllmFlag(_NO_ADAPTERS),
    "lora-dtype": VllmFlag(_NO_ADAPTERS),
    "lora-extra-vocab-size": VllmFlag(_NO_ADAPTERS),
    "max-cpu-loras": VllmFlag(_NO_ADAPTERS),
    "max-lora-rank": VllmFlag(_NO_ADAPTERS),
    "max-loras": VllmFlag(_NO_ADAPTERS),
    "enable-prompt-adapter": _never(_NO_ADAPTERS),
    "prompt-adapters": VllmFlag(_NO_ADAPTERS),
    "speculative-model": VllmFlag(_NO_DRAFTS),
    "num-speculative-tokens": VllmFlag(_NO_DRAFTS),
    "kv-transfer-config": VllmFlag("quire keeps KV memory in one engine; leave it out"),
    "disable-sliding-window": _never("a model's windows are kept; leave it out"),
    "rope-scaling": VllmFlag("set rope_scaling with --hf-overrides"),
    "rope-theta": VllmFlag("set rope_theta with --hf-overrides"),
    "enable-mm-embeds": _never("rows that a client made are not taken; send the image itself"),
    "video-pruning-rate": VllmFlag("no token of a video is left out; for fewer frames see --media-io-kwargs"),
    "hf-token": VllmFlag("set HF_TOKEN in the environment"),
    "logits-processors": VllmFlag("quire imports no code named on the command line; see structured_outputs"),
    "master-addr": VllmFlag(_ONE_HOST),
    "master-port": VllmFlag(_ONE_HOST),
    "max-log-len": VllmFlag(_NOT_LOGGED),
    "middleware": VllmFlag("quire imports no code named on the command line; use a reverse proxy"),
    "num-gpu-blocks-override": VllmFlag("use --kv-cache-memory-bytes"),
    "optimization-level": VllmFlag("there are no levels; leave it out, or say --enforce-eager", also=("-O",)),
    "revision": VllmFlag("write it behind the hub id, MODEL@REVISION"),
    "root-path": VllmFlag("let the reverse proxy strip the prefix"),
    "convert": VllmFlag("a head is never made up; see --task", ("auto", "none", *MEANT["convert"])),
    "runner": VllmFlag("a model generates or pools; see --task", ("auto", *MEANT["runner"])),
    "speculative-config": VllmFlag(_NO_DRAFTS, also=("-sc",)),
    "structured-outputs-config": VllmFlag("grammars are always compiled by llguidance"),
    "tokenizer-revision": VllmFlag("write it behind the hub id, MODEL@REVISION"),
    "tool-parser-plugin": VllmFlag("quire imports no code named on the command line; see --tool-call-parser"),
    "trust-request-chat-template": _never("a template never comes from a request; use --chat-template"),
    "uds": VllmFlag("use --host and --http-port"),
    **NEWER,
}
