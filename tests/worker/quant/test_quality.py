"""What a quantization costs in quality: the perplexity of the embedded model, on text that stands in every Python."""

import json
import math
import shutil
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy, pad

from quire.kernels.attention.attention import PagedBatch
from quire.kernels.linear.linear_f8_blocks import SIDE
from quire.worker.batch import ForwardBatch, GroupBatch
from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups, SingleGroup
from quire.worker.memory.kv_cache import KVCache
from quire.worker.memory.kv_layout import kv_layout
from quire.worker.memory.kv_scales import KVScales
from quire.worker.models.build import load_model
from quire.worker.quant.select import schemes_of
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.start import start

MODEL = Path(__file__).parents[3] / "deploy" / "model"
CPU = torch.device("cpu")
BLOCK = 16
MAGNITUDES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
"""Of the floats of 4 bits, by their codes without the sign."""
TOKENS = 768
Scales = list[KVScales] | None


def perplexity(
    folder: Path,
    quantization: str,
    texts: list[str],
    cached: torch.dtype = torch.float32,
    scales: Scales = None,
    *,
    dtype: str = "float32",
    decoded: bool = False,
) -> float:
    """Of the first TOKENS tokens of each text together, with a cache in this type, as a prompt or token by token."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    spec = read_spec(folder)
    plan = read_plan(WorkerConfig(model=str(folder), quantization=quantization, dtype=dtype), spec)
    context = BuildContext(SingleGroup(), CPU, torch.float32, schemes_of(plan, CPU))
    decoder = load_model(folder, spec, context, plan=plan).model
    cache = KVCache(kv_layout(spec.kv_layers(1), BLOCK, cached), TOKENS // BLOCK, CPU, scales)
    losses = []
    for text in texts:
        ids = torch.tensor(tokenizer.encode(text).ids[: TOKENS + 1])
        assert len(ids) == TOKENS + 1
        with torch.inference_mode():
            logits = decoder.logits(decoder(rows_of_one(ids[:-1]) if decoded else one_row(ids[:-1]), cache))
        losses.append(cross_entropy(logits.float(), ids[1:]).item())
    return math.exp(sum(losses) / len(losses))


def one_row(ids: torch.Tensor) -> ForwardBatch:
    """A step that runs all of one sequence."""
    return step(ids, [len(ids)], [len(ids)])


def rows_of_one(ids: torch.Tensor) -> ForwardBatch:
    """The same as one row a token: all keys are stored before any row attends, so each sees what is before it."""
    return step(ids, [1] * len(ids), list(range(1, len(ids) + 1)))


def step(ids: torch.Tensor, query_lens: list[int], seq_lens: list[int]) -> ForwardBatch:
    """Rows of one sequence."""
    attention = PagedBatch(
        block_tables=torch.arange(TOKENS // BLOCK, dtype=torch.int32)[None],
        slots=torch.zeros(len(query_lens), dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        query_starts=torch.tensor([0, *query_lens]).cumsum(0).int(),
        num_decodes=query_lens.count(1),
        query_lens_host=tuple(query_lens),
        seq_lens_host=tuple(seq_lens),
        schedules={},
    )
    positions = torch.arange(len(ids))
    return ForwardBatch(ids, positions[None], (GroupBatch(positions, attention),))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [Path(module.__file__).read_text(encoding="utf-8") for module in (textwrap, json.decoder)]


@pytest.fixture(scope="module")
def dense(texts: list[str]) -> float:
    """The perplexity in float32."""
    return perplexity(MODEL, "none", texts)


def in_blocks(folder: Path) -> Path:
    """The embedded model as a checkpoint of fp8 with a scale for each 128 x 128 weights, rounded to the nearest."""
    tensors = {}
    for name, weight in load_file(MODEL / "model.safetensors").items():
        tensors[name] = weight
        if name.endswith("_proj.weight"):
            outputs, inputs = weight.shape
            grid = (
                pad(weight.float(), (0, -inputs % SIDE, 0, -outputs % SIDE))
                .unflatten(0, (-1, SIDE))
                .unflatten(2, (-1, SIDE))
            )
            scale = grid.abs().amax((1, 3)).clamp(min=1e-12) / 448
            codes = (grid / scale[:, None, :, None]).to(torch.float8_e4m3fn)
            tensors[name] = codes.flatten(2).flatten(0, 1)[:outputs, :inputs].contiguous()
            tensors[f"{name}_scale_inv"] = scale
    save_file(tensors, folder / "model.safetensors")
    quantization = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [SIDE, SIDE]}
    config = json.loads((MODEL / "config.json").read_text()) | {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(MODEL / "tokenizer.json", folder)
    return folder


def in_floats(folder: Path, size: int) -> Path:
    """The embedded model as compressed-tensors has it in 4-bit floats, rounded to the nearest.

    Groups of 16 have scales of e4m3, multiples of a number of the whole matrix: its largest group takes 448 of them and
    its largest weight 6. Those of 32 have the least powers of two of which the largest weight is at most 7.
    """
    tensors = {}
    for name, weight in load_file(MODEL / "model.safetensors").items():
        tensors[name] = weight
        if not name.endswith("_proj.weight"):
            continue
        grouped = tensors.pop(name).float().unflatten(1, (-1, size))
        largest = grouped.abs().amax(2).clamp(min=1e-12)
        if size == 16:
            whole = 448 * 6 / largest.max()
            scale = (largest / 6 * whole).clamp(min=2**-9).to(torch.float8_e4m3fn)
            tensors |= {f"{name}_global_scale": whole.reshape(1), f"{name}_scale": scale}
            step = scale.float() / whole
        else:
            exponent = (largest / 1.75).log2().ceil() - 2
            tensors[f"{name}_scale"] = (exponent + 127).to(torch.uint8)
            step = exponent.exp2()
        near = (grouped.abs() / step[..., None])[..., None] - MAGNITUDES
        codes = (near.abs().argmin(-1) + 8 * (grouped < 0)).to(torch.uint8).flatten(1)
        tensors[f"{name}_packed"] = codes[:, ::2] | codes[:, 1::2] << 4
    save_file(tensors, folder / "model.safetensors")
    strategy, kind = ("tensor_group", "nvfp4") if size == 16 else ("group", "mxfp4")
    weights = {"num_bits": 4, "type": "float", "strategy": strategy, "group_size": size, "symmetric": True}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    config = json.loads((MODEL / "config.json").read_text()) | {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def in_groups(folder: Path, size: int) -> Path:
    """The embedded model as compressed-tensors has it in 4 bits without zero points, rounded to the nearest."""
    tensors = {}
    for name, weight in load_file(MODEL / "model.safetensors").items():
        tensors[name] = weight
        if not name.endswith("_proj.weight"):
            continue
        grouped = tensors.pop(name).float().unflatten(1, (-1, size))
        scale = grouped.abs().amax(2).clamp(min=1e-12) / 7.5
        codes = ((grouped / scale[..., None]).round().clamp(-8, 7) + 8).to(torch.uint8).flatten(1)
        packed = (codes[:, ::2] | codes[:, 1::2] << 4).view(torch.int32)
        shape = torch.tensor(weight.shape)
        tensors |= {f"{name}_packed": packed, f"{name}_scale": scale, f"{name}_shape": shape}
    save_file(tensors, folder / "model.safetensors")
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": size, "symmetric": True}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    config = json.loads((MODEL / "config.json").read_text()) | {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def near(name: str, found: float, of: float, most: float) -> None:
    """Hold a perplexity against another. `pytest -rP` shows the numbers of README.md."""
    print(f"{name}: {found / of - 1:+.2%}")
    assert found == pytest.approx(of, rel=most)
    assert found != of


@pytest.mark.parametrize(("quantization", "most"), [("int8", 0.003), ("fp8", 0.005)])
def test_the_perplexity_of_weights_quantized_on_the_fly_is_near_that_of_fp32(texts, dense, quantization, most) -> None:
    quantized = perplexity(MODEL, quantization, texts)
    assert 1.0 < dense < 30.0
    near(quantization, quantized, dense, most)


def test_the_perplexity_of_fp8_in_blocks_is_near_that_of_fp32(texts, dense, tmp_path) -> None:
    near("fp8 in blocks", perplexity(in_blocks(tmp_path), "none", texts), dense, 0.005)


def calculated() -> list[KVScales]:
    """The scales that a start makes."""
    config = WorkerConfig(
        model=str(MODEL), device="cpu", dtype="float32", kv_cache_dtype="fp8", calculate_kv_scales=True,
        max_num_seqs=2, max_num_batched_tokens=512, kv_cache_memory_bytes=16 << 20, num_threads=1,
    )  # fmt: skip
    runner = start(config, 0, Device("cpu", 0), Groups).executor
    return [KVScales(layer.key_scale, layer.value_scale) for layer in runner._cache.layers]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scales", [lambda: None, calculated], ids=["of one", "calculated"])
def test_the_perplexity_of_a_cache_of_8_bit_floats_is_near_that_of_fp32(texts, dense, scales) -> None:
    near("fp8 cache", perplexity(MODEL, "none", texts, torch.float8_e4m3fn, scales()), dense, 0.003)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("decoded", [False, True], ids=["a prompt", "decoded"])
def test_the_perplexity_of_a_cache_of_8_bit_integers_is_near_that_of_fp32(texts, dense, decoded) -> None:
    near("int8 cache", perplexity(MODEL, "none", texts, torch.int8, decoded=decoded), dense, 0.002)


def test_the_perplexity_of_a_cache_in_bfloat16_is_that_of_fp32_but_for_roundings(texts, dense) -> None:
    assert perplexity(MODEL, "none", texts, torch.bfloat16) == pytest.approx(dense, rel=0.0005)


def test_the_perplexity_of_4_bit_groups_is_near_that_of_fp32_with_and_without_rounded_activations(texts, dense) -> None:
    exact, rounded = (perplexity(MODEL, "int4", texts, dtype=dtype) for dtype in ("float32", "auto"))
    near("int4", exact, dense, 0.025)
    near("int4, rounded activations", rounded, exact, 0.0025)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [128, 32])
def test_the_perplexity_of_symmetric_4_bit_groups_is_near_that_of_fp32(texts, dense, tmp_path, size) -> None:
    """By the format's own scales, a fifteenth of the range: a group of 32 saturates more often than GGUF's Q4_0."""
    exact, rounded = (
        perplexity(in_groups(tmp_path, size), "none", texts, dtype=dtype) for dtype in ("float32", "auto")
    )
    near(f"4 bits by {size}", exact, dense, 0.025)
    near(f"4 bits by {size}, rounded activations", rounded, exact, 0.0025)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [16, 32])
def test_the_perplexity_of_4_bit_floats_is_near_that_of_fp32(texts, dense, tmp_path, size) -> None:
    exact, rounded = (
        perplexity(in_floats(tmp_path, size), "none", texts, dtype=dtype) for dtype in ("float32", "auto")
    )
    near(f"e2m1 by {size}", exact, dense, 0.02)
    near(f"e2m1 by {size}, rounded activations", rounded, exact, 0.0025)
