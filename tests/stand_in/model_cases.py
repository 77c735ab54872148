"""Whole engines: start-up with warm-up and graphs, the runner's steps, the sampler; and the launches of a layer."""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from quire.kernels.gpu.aot.stand_in import Launch
from quire.proto.messages.params import SamplingParams
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.models.block import Block
from quire.worker.start import start

sys.path.append(str(Path(__file__).parents[1] / "gpu"))
import models
from plans import Hand

GREEDY = SamplingParams(temperature=0.0, max_tokens=10_000, ignore_eos=True)
EVERYTHING = SamplingParams(
    temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, seed=5, repetition_penalty=1.2, presence_penalty=0.3,
    frequency_penalty=0.1, logit_bias=((3, 1.0),), allowed_token_ids=tuple(range(2, 300)), bad_words=((7, 8), (9,)),
    logprobs=3, prompt_logprobs=2, max_tokens=10_000, ignore_eos=True,
)  # fmt: skip
ENCODER = {
    "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 384, "intermediate_size": 1536,
    "num_hidden_layers": 2, "num_attention_heads": 12, "vocab_size": 1000, "max_position_embeddings": 512,
    "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "torch_dtype": "float32", "pad_token_id": 0,
}  # fmt: skip
Layers = dict[str, list[str]]
Case = Callable[[list[Launch]], Layers]


def cases(capability: int) -> Iterator[tuple[str, Case]]:
    """The 8B decoder's layers on every chip, over 8-bit floats where there are such; on Hopper the others too."""
    llama, qwen = {**models.LLAMA_8B, "num_hidden_layers": 2}, {**models.QWEN3_8B, "num_hidden_layers": 2}
    if capability in (86, 90):
        yield "llama 8b", lambda launches: _layers(launches, llama)
    if capability >= 89:
        yield "llama 8b fp8 cache", lambda launches: _layers(launches, llama, kv_cache_dtype="fp8")
    if capability != 90:
        return
    yield (
        "llama 8b pages of 64",
        lambda launches: _layers(launches, llama, block_size=64, kv_cache_memory_bytes=96 << 20),
    )
    yield "llama f8 rows", lambda launches: _layers(launches, llama, quantization="fp8")
    yield "small f8 rows", lambda launches: _served(launches, models.SMALL, "bfloat16", quantization="fp8")
    yield "llama int8 rows", lambda launches: _layers(launches, llama, quantization="int8")
    yield "qwen3 8b", lambda launches: _layers(launches, qwen)
    yield "llama int4", lambda launches: _layers(launches, llama, quantization="int4")
    yield "small", lambda launches: _served(launches, models.SMALL, "float32")
    yield "encoder", lambda launches: _encoded(launches)


def _engine(model: dict, folder: str, **changes):
    path = models.write(Path(folder) / "model", model)
    fields = {"max_num_seqs": 160, "max_num_batched_tokens": 640, "kv_cache_memory_bytes": 64 << 20, **changes}
    config = WorkerConfig(model=str(path), load_format="dummy", device="cuda", **fields)
    return start(config, 0, Device("cuda", 0), Groups).executor


def _layers(launches: list[Launch], model: dict, **changes) -> Layers:
    """What one layer launches in steps of one kind each, run without graphs."""
    seen: list[tuple[int, int]] = []
    whole = Block.forward

    def forward(self, *arguments):
        begun = len(launches)
        result = whole(self, *arguments)
        seen.append((begun, len(launches)))
        return result

    found: Layers = {}
    with tempfile.TemporaryDirectory() as folder:
        fields = {"max_model_len": 512, "dtype": "bfloat16", "enforce_eager": True, **changes}
        hand = Hand(_engine(model, folder, **fields), fields.get("block_size", 16))
    for slot in range(128):
        hand.admit(slot, [1], GREEDY, room=8)
    hand.admit(128, [1] * 200, GREEDY)
    Block.forward = forward
    try:
        for name, rows in {
            "first": [(slot, 1) for slot in range(128)],
            "decode 1": [(0, 1)],
            "decode 16": [(slot, 1) for slot in range(16)],
            "decode 128": [(slot, 1) for slot in range(128)],
            "mixed 16": [*((slot, 1) for slot in range(8)), (128, 8)],
            "mixed": [*((slot, 1) for slot in range(8)), (128, 192)],
        }.items():
            hand.run(rows)
            begun, ended = seen[-1]  # the first layer of a model has no residual to add
            found[name] = [launch.kernel for launch in launches[begun:ended]]
    finally:
        Block.forward = whole
    return found


def _served(launches: list[Launch], model: dict, dtype: str, **changes) -> Layers:
    """Start-up, graphs and steps with every way to sample."""
    with tempfile.TemporaryDirectory() as folder:
        runner = _engine(model, folder, dtype=dtype, max_num_seqs=24, kv_cache_memory_bytes=8 << 20, **changes)
    hand = Hand(runner, 16)
    for slot, (params, length) in enumerate(_requests()):
        hand.admit(slot, [5] * length, params, room=4)
    lengths = [length for _, length in _requests()]
    hand.run(list(enumerate(lengths)))
    for _ in range(2):
        hand.run([(slot, 1) for slot in range(len(lengths))])
    hand.release(range(len(lengths)))
    return {}


def _requests() -> Sequence[tuple[SamplingParams, int]]:
    return (GREEDY, 1), (EVERYTHING, 33), (SamplingParams(max_tokens=10_000), 17), (EVERYTHING, 16)


def _encoded(launches: list[Launch]) -> Layers:
    """Warm-up is all of its steps."""
    with tempfile.TemporaryDirectory() as folder:
        for dtype in ("float32", "bfloat16"):
            path = Path(folder) / dtype
            _engine(ENCODER, str(path), dtype=dtype, task="embed", max_num_seqs=8)
    return {}
