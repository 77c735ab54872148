"""Flags of llama.cpp's `llama-server`: what changes no answer is taken with a line, the rest named with ours."""

from quire.deploy.flags.vllm_flags import BARE, VllmFlag, speed

_DEFAULTS = "set it for the deployment with --override-generation-config, or in requests"

LLAMA_FLAGS: dict[str, VllmFlag] = {
    # no effect
    "jinja": VllmFlag("chat templates are always Jinja", (BARE,), bare=True),
    "metrics": VllmFlag("/metrics is always there", (BARE,), bare=True),
    "slots": VllmFlag("/slots is always there", (BARE,), bare=True),
    "props": VllmFlag("/props is read only", (BARE,), bare=True),
    # changes no answer
    "cache-prompt": speed("equal beginnings of prompts are always shared; see --enable-prefix-caching", bare=True),
    "cache-reuse": speed("equal beginnings of prompts are always shared; see --enable-prefix-caching"),
    "cont-batching": speed("requests always share steps", "-cb", bare=True),
    "flash-attn": speed("attention is always computed in tiles", "-fa"),
    "no-mmap": speed("weights are read into memory once and stay", bare=True),
    "no-warmup": speed("a first step is always run before requests are taken", bare=True),
    "numa": speed("each worker is pinned to its share of the cores"),
    "threads-batch": speed("use --num-threads for all work of a worker", "-tb"),
    "ubatch-size": speed("use --max-num-batched-tokens for the tokens of one step", "-ub"),
    # named with ours
    "alias": VllmFlag("use --served-model-name", also=("-a",)),
    "batch-size": VllmFlag("use --max-num-batched-tokens for the tokens of one step", also=("-b",)),
    "cache-type-k": VllmFlag("use --kv-cache-dtype", ("f16", "bf16"), also=("-ctk",)),
    "cache-type-v": VllmFlag("use --kv-cache-dtype", ("f16", "bf16"), also=("-ctv",)),
    "chat-template-file": VllmFlag("use --chat-template"),
    "ctx-size": VllmFlag("use --max-model-len for one request; --kv-cache-memory-bytes is for all", also=("-c",)),
    "embedding": VllmFlag("use --task embed", bare=True),
    "embeddings": VllmFlag("use --task embed", bare=True),
    "gpu-layers": VllmFlag("layers are all on one device: use --device cuda or --device cpu", also=("-ngl",)),
    "hf-repo": VllmFlag("write the hub id as MODEL", also=("-hf",)),
    "lora": VllmFlag("quire serves no adapters yet"),
    "mmproj": VllmFlag("GGUF files are read for text alone; for images give a directory of safetensors"),
    "model-draft": VllmFlag("quire does not speculate yet", also=("-md",)),
    "n-gpu-layers": VllmFlag("layers are all on one device: use --device cuda or --device cpu"),
    "n-predict": VllmFlag("send max_tokens with requests"),
    "parallel": VllmFlag("use --max-num-seqs", also=("-np",)),
    "repeat-penalty": VllmFlag(_DEFAULTS),
    "rerank": VllmFlag("rerankers and embedding models rank by themselves; see --task", bare=True),
    "reranking": VllmFlag("rerankers and embedding models rank by themselves; see --task", bare=True),
    "split-mode": VllmFlag("use --tensor-parallel-size, which shares every layer", ("none",), also=("-sm",)),
    "ssl-cert-file": VllmFlag("use --ssl-certfile"),
    "ssl-key-file": VllmFlag("use --ssl-keyfile"),
    "temp": VllmFlag(_DEFAULTS),
    "tensor-split": VllmFlag("every rank has an equal share; use --tensor-parallel-size", also=("-ts",)),
    "threads": VllmFlag("use --num-threads", also=("-t",)),
}
