"""Flags of SGLang's server: what changes no answer is taken with a line, the rest named with ours."""

from quire.deploy.flags.vllm_flags import BARE, VllmFlag, speed

_NO_DRAFTS = "quire does not speculate yet"
_NO_REPLICAS = "quire has no data parallelism; start one `quire serve` per replica behind a load balancer"
_ON_DEVICE = "keys and values stay on the device"
_ONE_KERNEL = "quire has one attention kernel for each device"
_STEP_TOKENS = "use --max-num-batched-tokens for the tokens of one step"
_WIDTH = "use --tensor-parallel-size"

SGLANG_FLAGS: dict[str, VllmFlag] = {
    # no effect
    "enable-cache-report": VllmFlag("usage always tells the cached tokens", (BARE,), bare=True),
    "enable-metrics": VllmFlag("/metrics is always there", (BARE,), bare=True),
    "enable-mixed-chunk": VllmFlag("prompts and decodes always share steps", (BARE,), bare=True),
    "grammar-backend": VllmFlag("grammars are always compiled by llguidance", ("llguidance",)),
    # changes no answer
    "cuda-graph-max-bs": speed("the sizes of captured graphs follow --max-num-seqs"),
    "disable-overlap-schedule": speed("steps always overlap", bare=True),
    "enable-torch-compile": speed("every kernel is compiled already", bare=True),
    "sampling-backend": speed("quire has one sampler for each device"),
    "schedule-conservativeness": speed("a sequence that finds no block waits again and goes on; see --max-num-seqs"),
    "skip-server-warmup": speed("a first step is always run before requests are taken", bare=True),
    "stream-interval": speed("tokens are sent as they come"),
    # named with ours
    "base-gpu-id": VllmFlag("choose devices with CUDA_VISIBLE_DEVICES", ("0",)),
    "chunked-prefill-size": VllmFlag(_STEP_TOKENS),
    "completion-template": VllmFlag("quire has no such templates; use /infill"),
    "context-length": VllmFlag("use --max-model-len"),
    "disable-cuda-graph": VllmFlag("use --enforce-eager", bare=True),
    "disable-radix-cache": VllmFlag("use --no-enable-prefix-caching", bare=True),
    "dist-init-addr": VllmFlag("quire runs on one host"),
    "dp-size": VllmFlag(_NO_REPLICAS, ("1",)),
    "enable-dp-attention": VllmFlag(_NO_REPLICAS, bare=True),
    "enable-hierarchical-cache": VllmFlag(_ON_DEVICE, bare=True),
    "ep-size": VllmFlag("use --enable-expert-parallel, which deals whole experts to all workers", ("1",)),
    "is-embedding": VllmFlag("use --task embed", bare=True),
    "lora-paths": VllmFlag("quire serves no adapters yet"),
    "max-prefill-tokens": VllmFlag(_STEP_TOKENS),
    "max-queued-requests": VllmFlag("use --max-num-queued-reqs"),
    "max-running-requests": VllmFlag("use --max-num-seqs"),
    "max-total-tokens": VllmFlag("use --max-model-len for one request, --kv-cache-memory-bytes for all together"),
    "mem-fraction-static": VllmFlag("use --gpu-memory-utilization, in which the largest step has room, too"),
    "page-size": VllmFlag("use --block-size"),
    "pp-size": VllmFlag("quire has no pipeline parallelism; --tensor-parallel-size shares every layer", ("1",)),
    "random-seed": VllmFlag("use --seed"),
    "schedule-policy": VllmFlag("use --scheduling-policy", ("fcfs",)),
    "speculative-algorithm": VllmFlag(_NO_DRAFTS),
    "speculative-draft-model-path": VllmFlag(_NO_DRAFTS),
    "tokenizer-path": VllmFlag("use --tokenizer"),
    "tp": VllmFlag(_WIDTH),
    "tp-size": VllmFlag(_WIDTH),
    "allow-auto-truncate": VllmFlag("send truncate_prompt_tokens with requests", bare=True),
    "cuda-graph-bs": speed("the sizes of captured graphs follow --max-num-seqs"),
    "disable-fast-image-processor": speed("there is one image processor", bare=True),
    "disaggregation-mode": VllmFlag("every engine prefills and decodes", ("null",)),
    "dist-timeout": VllmFlag("use --startup-timeout"),
    "enable-memory-saver": VllmFlag("an engine keeps its memory; stop it, and start it again", bare=True),
    "enable-multimodal": VllmFlag("a model that reads images does; see --language-model-only", (BARE,), bare=True),
    "enable-priority-scheduling": VllmFlag("use --scheduling-policy priority", bare=True),
    "grpc-mode": VllmFlag("both APIs are always there; see --grpc-port", (BARE,), bare=True),
    "hicache-ratio": VllmFlag(_ON_DEVICE),
    "hicache-size": VllmFlag(_ON_DEVICE, ("0",)),
    "log-level-http": VllmFlag("use --log-level", ("debug", "info", "warning", "error", "critical")),
    "log-requests": VllmFlag("prompts never reach the log; use --otlp-traces-endpoint and request ids", bare=True),
    "max-loaded-loras": VllmFlag("quire serves no adapters yet"),
    "max-loras-per-batch": VllmFlag("quire serves no adapters yet"),
    "prefill-attention-backend": speed(_ONE_KERNEL),
    "decode-attention-backend": speed(_ONE_KERNEL),
    "mm-attention-backend": speed(_ONE_KERNEL),
    "preferred-sampling-params": VllmFlag("use --override-generation-config"),
    "quantization-param-path": VllmFlag("scales of an fp8 cache are the checkpoint's; see --calculate-kv-scales"),
    "sampling-defaults": VllmFlag("use --generation-config vllm for neutral ones", ("model",)),
    "speculative-num-draft-tokens": VllmFlag(_NO_DRAFTS),
    "speculative-num-steps": VllmFlag(_NO_DRAFTS),
    "speculative-eagle-topk": VllmFlag(_NO_DRAFTS),
    "torchao-config": VllmFlag("use --quantization"),
    "watchdog-timeout": VllmFlag("use --step-timeout"),
}
