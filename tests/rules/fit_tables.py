"""Tables of `deploy/TUNING.md` that are made: what published models take, and defaults beside vLLM's."""

from collections.abc import Iterable
from pathlib import Path

from quire.deploy.flags.spec import specs
from quire.proto.process.sizes import format_bytes, format_count
from quire.worker.config import WorkerConfig
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Fit, Place

PUBLISHED = Path(__file__).resolve().parents[1] / "published"
"""A folder with config.json for each of some published models."""
MODELS = (
    "Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B",
    "Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-32B", "Qwen2.5-72B",
    "Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-8B", "Llama-3.1-70B",
    "Mistral-7B-v0.3", "Mistral-Nemo-12B", "Mistral-Small-24B",
)  # fmt: skip
WIDTHS = (1, 2, 4, 8)
PLACE, SHARE, LENGTH = Place(is_gpu=True, memory=48 << 30), 0.7, 12 << 10
ASKED = ("--device-memory", "48GiB", "--gpu-memory-utilization", "0.7", "--max-model-len", "12K")
"""The same as words for `quire doctor`."""
REFUSED = "no"

Table = tuple[tuple[str, ...], Iterable[tuple[str, ...]]]

DEFAULTS = {
    "host": ("all interfaces", "name another address once there are keys"),
    "max-num-seqs": ("`256`; `1024` on GPUs from 70 GiB, but the A100", "one value everywhere"),
    "max-num-batched-tokens": ("`2048`; `8192` on the same GPUs", "one value everywhere"),
    "gpu-memory-utilization": ("`0.92`; `0.9` in older releases", "the same"),
    "max-num-partial-prefills": ("`1`", "half of every step goes to the shortest prompts"),
    "max-model-len": ("the model's; refused where the memory holds less", "the log says what it was lowered to"),
    "max-num-queued-reqs": ("no bound", "a queue that only grows answers nobody in time"),
    "max-num-queued-tokens": ("no bound", "the same"),
    "dtype": ("`auto`: the checkpoint's, but 16 bits for one of float32", "float32 checkpoints stay what they are"),
    "enable-auto-tool-choice": ("`off`", "a format is found by the chat template"),
    "tool-call-parser": ("none", "the same"),
    "reasoning-parser": ("none", "the same"),
    "allowed-origins": ("`*`", "pages of other origins call it only where you say so"),
}
"""Flag -> vLLM's default, and what follows from ours."""


def needs(model: str, size: int, kv_dtype: str = "auto") -> tuple[Fit | None, list[str]]:
    """What a model takes on each of so many ranks, and why it is refused."""
    asked = {"model": str(PUBLISHED / model), "tensor_parallel_size": size, "kv_cache_dtype": kv_dtype}
    return fit(WorkerConfig(**asked, max_model_len=LENGTH, gpu_memory_utilization=SHARE), PLACE)


def models_table() -> Table:
    head = ("model", "parameters", "context", "KV a token", "in fp8", *(f"`-tp {size}`" for size in WIDTHS))
    return head, (_model_row(model) for model in MODELS)


def _model_row(model: str) -> tuple[str, ...]:
    (whole, _), (small, _) = needs(model, 1), needs(model, 1, "fp8")
    assert whole is not None
    assert small is not None
    return (
        model,
        format_count(whole.num_parameters),
        str(whole.spec.max_model_len),
        format_bytes(whole.token_bytes),
        format_bytes(small.token_bytes),
        *(_cell(*needs(model, size)) for size in WIDTHS),
    )


def _cell(found: Fit | None, refusals: list[str]) -> str:
    """Weights of a rank, and sequences."""
    if found is None or found.kv_tokens is None or refusals:
        return REFUSED
    return f"{format_bytes(found.weight_bytes)}, {found.kv_tokens / LENGTH:.1f}"


def defaults_table() -> Table:
    texts = {spec.name: spec.default_text for spec in specs()}
    plain = {spec.name for spec in specs() if spec.flag.default}
    rows = (
        (f"`--{name}`", vllm, texts[name] if name in plain else f"`{texts[name]}`", why)
        for name, (vllm, why) in DEFAULTS.items()
    )
    return ("flag", "vLLM", "quire", "why"), rows
