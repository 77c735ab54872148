"""What `bench.py` runs, on a GPU and, to prove the script itself, in small on a CPU; and what each may cost."""

from dataclasses import dataclass, replace
from typing import Any

import models


@dataclass(frozen=True)
class Throughput:
    name: str
    input_len: int
    output_len: int
    requests: int
    seconds: float
    """After which what is missing is given up."""
    target: float
    """Output tokens per second on one H200."""


@dataclass(frozen=True)
class Latencies:
    config: dict[str, Any]
    options: dict[str, object]
    """Of `quire serve`."""
    contexts: tuple[int, ...]
    """For the time per token of one sequence."""
    batches: dict[int, float]
    """Sequences at once -> target, milliseconds of a step"""
    batch_context: int
    first_tokens: dict[int, float]
    """Prompt tokens -> target, milliseconds to the first token"""
    itl_target: float
    """Milliseconds of one sequence's step at a short context."""
    slope_target: float
    """Milliseconds for each further token of context."""


@dataclass(frozen=True)
class Bench(Latencies):
    throughput: tuple[Throughput, ...]
    comparison: Throughput
    """For transformers and quire alike; the target is a ratio."""


@dataclass(frozen=True)
class Images:
    """Of one size, for the tower."""

    grid: tuple[int, int, int]
    count: int
    target: float
    """Share of the rate of a large product."""

    @property
    def num_patches(self) -> int:
        return self.grid[1] * self.grid[2]


@dataclass(frozen=True)
class Cameras:
    options: dict[str, object]
    """Of `quire serve`."""
    text: dict[str, object]
    """Fields of the decoder's config."""
    image_size: str
    closed: tuple[str, ...]
    """Of `quire bench serve`: the most that the server answers."""
    preset: tuple[str, ...]
    """Of the same: cameras."""
    num_cameras: int
    interval: float
    """Seconds between frames, where nothing was measured."""
    vocab_size: int = 101
    """Ids of special tokens and of printable characters, of which texts are made: others would come back as more."""


IMAGES = Images((1, 46, 82), 16, 0.5)
"""1312 x 736 pixels"""
SMALL_IMAGES = Images((1, 6, 10), 3, 0.5)
SLO = "--slo", "ttft=200ms,itl=30ms"
CAMERAS = Cameras(
    options={"frontends": 2, "media_processes": 5, "max_model_len": 12_288, "max_num_batched_tokens": 4096},
    text={},
    image_size="1280x720",
    closed=("--images", "1", "--shared-prefix", "1500", "--input-len", "32", "--output-len", "64",
            "--concurrency", "64", "--num-prompts", "256", *SLO),
    preset=("--preset", "eva", "--frames", "2", *SLO),
    num_cameras=100,
    interval=10.0,
)  # fmt: skip
SMALL_CAMERAS = Cameras(
    options={"max_model_len": 4096, "max_num_seqs": 16, "kv_cache_memory_bytes": 256 << 20, "num_threads": 1},
    text={"vocab_size": 151_936},
    image_size="96x64",
    closed=("--images", "1", "--shared-prefix", "40", "--input-len", "8", "--output-len", "4",
            "--concurrency", "2", "--num-prompts", "4", *SLO),
    preset=("--preset", "eva", "--cameras", "2", "--shared-prefix", "40", "--output-len", "4", "--frames", "2", *SLO),
    num_cameras=2,
    interval=1.0,
)  # fmt: skip
H200 = Bench(
    config=models.LLAMA_8B,
    options={
        "device": "cuda",
        "max_model_len": 20_000,
        "max_num_seqs": 512,
        "max_num_batched_tokens": 2048,
        "block_size": 64,
    },
    contexts=(128, 2048, 8192, 16_384),
    batches={32: 6.4, 128: 12.9, 256: 23.0},
    batch_context=2048,
    first_tokens={2048: 46.0, 8192: 215.0},
    throughput=(
        Throughput("1000/1000", 1000, 1000, 320, 40.0, 10_000.0),
        Throughput("128/2048", 128, 2048, 320, 50.0, 15_400.0),
        Throughput("2048/128", 2048, 128, 512, 38.0, 2200.0),
    ),
    comparison=Throughput("128/128", 128, 128, 64, 15.0, 5.0),
    itl_target=4.1,
    slope_target=3.3e-5,
)
SMALL = Bench(
    config=models.SMALL,
    options={"device": "cpu", "max_model_len": 512, "max_num_seqs": 16, "kv_cache_memory_bytes": 64 << 20,
             "num_threads": 1},
    contexts=(16, 128),
    batches={4: 1.0},
    batch_context=32,
    first_tokens={64: 1.0},
    throughput=(Throughput("20/20", 20, 20, 8, 3000.0, 1.0), Throughput("32/400", 32, 400, 64, 1.0, 1.0)),
    comparison=Throughput("16/8", 16, 8, 8, 3000.0, 5.0),
    itl_target=1.0,
    slope_target=1.0,
)  # fmt: skip
EXPERTS = {
    # all that a step must read at 4.4 TB/s, 1.25 times, and of many sequences, which reach nearly every expert, 1.33
    "experts": Latencies(
        config=models.published("Qwen3-30B-A3B"),
        options={**H200.options, "max_model_len": 8192, "max_num_seqs": 128},
        contexts=(128, 2048),
        batches={4: 4.6, 32: 18.0, 128: 26.0},
        batch_context=2048,
        first_tokens={2048: 33.0},
        itl_target=1.79,
        slope_target=2.8e-5,
    ),
    "experts_mxfp4": Latencies(
        config=models.published("gpt-oss-20b"),
        options={**H200.options, "dtype": "bfloat16", "max_model_len": 8192, "max_num_seqs": 128},
        contexts=(128, 2048),
        batches={4: 1.9, 32: 4.9, 128: 6.4},
        batch_context=2048,
        first_tokens={2048: 28.0},
        itl_target=1.05,
        slope_target=1.0e-5,
    ),
}
"""Parts, each a model of experts."""
SMALL_EXPERTS = Latencies(models.SMALL_EXPERTS, SMALL.options, (16, 128), {4: 1.0}, 32, {64: 1.0}, 1.0, 1.0)

START_SECONDS = 90.0
LATENCY_SECONDS = 40.0
"""After which a latency is given up."""
IDLE_TARGET = 0.01
"""Of the time in which an engine has work."""


def of(device: str, stands_in: bool) -> Bench:
    """A stand-in has the GPU's lines and shapes, with fewer layers, sequences, requests and tokens."""
    if device == "cpu":
        return SMALL
    if not stands_in:
        return H200
    return replace(
        H200,
        config={**H200.config, "num_hidden_layers": 2},
        options={**H200.options, "max_num_seqs": 128},
        batches={batch: target for batch, target in H200.batches.items() if batch <= 128},
        batch_context=256,
        throughput=tuple(_short(load) for load in H200.throughput),
        comparison=_short(H200.comparison),
    )


def experts_of(part: str, device: str, stands_in: bool) -> Latencies:
    """As `of`, for one of EXPERTS."""
    if device == "cpu":
        return SMALL_EXPERTS
    bench = EXPERTS[part]
    if not stands_in:
        return bench
    config = {**bench.config, "num_hidden_layers": 2, "vocab_size": 32_000}
    for name in ("num_experts", "num_local_experts"):  # all of them take a busy machine minutes to draw
        if name in config:
            config[name] = 8
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:2]
    options = {**bench.options, "max_num_seqs": 16, "max_num_batched_tokens": 640}  # of which follow the graphs
    return replace(bench, config=config, options=options, batches={4: bench.batches[4]}, batch_context=256)


def cameras_of(device: str, stands_in: bool) -> Cameras:
    """A stand-in has the GPU's shapes with few layers, and the small one's requests."""
    if device == "cpu":
        return SMALL_CAMERAS
    if not stands_in:
        return CAMERAS
    options = {**CAMERAS.options, "frontends": 1, "media_processes": 1, "max_num_seqs": 16}
    return replace(SMALL_CAMERAS, options=options, text={"num_hidden_layers": 3})


def _short(load: Throughput) -> Throughput:
    return replace(load, requests=load.requests // 16, output_len=load.output_len // 16)
