"""Flags of `vllm serve`, of old releases too, that quire has under no name.

Those that change nothing here are taken; those that could only change how fast a thing is done are taken with a line
that says what happens instead; the rest are refused with the way out. Flags of the same meaning are spellings in
`quire.deploy.flags.options`.
"""

from dataclasses import dataclass

from quire.deploy.flags.meaning import Meaning
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
    "data-parallel-size": VllmFlag(
        "quire has no data parallelism; start one `quire serve` per replica behind a load balancer",
        ("1",),
        also=("-dp",),
    ),
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
}
