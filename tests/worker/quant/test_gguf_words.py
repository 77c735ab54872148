"""GGUF's types as GPUs keep them, on the host: the weights that the format's own package means, and their bytes."""

import base64
import hashlib
import json
import sys
from pathlib import Path

import msgspec
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[2]))

from gguf_meant import of_blocks
from meant import weights_of

from quire.deploy.gguf.folder import make_folder
from quire.kernels.linear.linear_group_words import dequantize_words_reference
from quire.kernels.linear.norm import residual_norm_reference
from quire.worker.config import WorkerConfig
from quire.worker.quant.form import Groups
from quire.worker.quant.group_words import GroupWordsScheme
from quire.worker.quant.plan import Plan
from quire.worker.quant.read.gguf import FORMS
from quire.worker.quant.select import schemes_of
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.weights.gguf.blocks import LAYOUTS, codes, minima, minima_unit, scale, unit
from quire.worker.weights.gguf.types import TYPES

MADE = Path(__file__).parents[1] / "weights/ggufs"
EXPECTED = json.loads((MADE / "expected.json").read_text())["models"]
BLOCKS = json.loads((MADE / "blocks.json").read_text())
QUANTIZED = tuple(name for name in EXPECTED if name.startswith("llama-") and not name.endswith("f16"))
CUDA = torch.device("cuda")
OVER_THE_FILE = {"Q3_K": 2.5, "Q4_K": 1.12, "Q6_K": 1.4, "Q5_0": 1.65, "Q5_1": 1.65, "Q5_K": 1.65}
"""Bytes on a GPU over those in the file, at most; of all other types 1.05."""


@pytest.fixture
def folder(tmp_path):
    """`folder(name)`: the directory that is made of a file."""

    def make(name):
        make_folder(MADE / f"{name}.gguf", tmp_path / name, with_tokenizer=True)
        return tmp_path / name

    return make


def scheme_on(kind):
    return schemes_of(Plan("gguf", {"head": FORMS[kind]}), CUDA)("head")


def kept_of(kind):
    """Random blocks, and the tensors that a GPU keeps of them."""
    layout = LAYOUTS[kind]
    raw = torch.frombuffer(bytearray(base64.b64decode(BLOCKS[kind]["blocks"])), dtype=torch.uint8).view(2, 8, -1)
    units = [unit(raw, layout)] if layout.has_units else []
    if layout.has_units and layout.has_minima:
        units.append(minima_unit(raw))
    least = minima(raw, layout) if layout.has_minima else None
    return raw, scheme_on(kind).kept(codes(raw, layout), scale(raw, layout), least, units)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_random_blocks_are_kept_as_the_weights_that_the_formats_own_package_reads(kind):
    """With scales that are subnormal, zero and as large as they get."""
    raw, kept = kept_of(kind)
    form, inputs = scheme_on(kind).form, 8 * LAYOUTS[kind].block
    stored = kept["words"], kept["scale"], kept.get("offset"), form.held_bits, inputs, torch.float32
    weight = dequantize_words_reference(*stored, kept.get("unit"), form.table)
    assert torch.equal(weight, of_blocks(raw, kind))


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_gpu_holds_few_bytes_more_than_the_file_and_the_form_says_how_many(kind):
    raw, kept = kept_of(kind)
    form, inputs = scheme_on(kind).form, 8 * LAYOUTS[kind].block
    assert sum(one.nbytes for one in kept.values()) == form.num_bytes(2, inputs)
    block_bytes = next(one.block_bytes for one in TYPES.values() if one.name == kind)
    assert raw.numel() == 2 * 8 * block_bytes
    assert form.num_bytes(2, inputs) <= OVER_THE_FILE.get(kind, 1.05) * raw.numel()
    assert ("each code in a byte" in str(form)) == (form.bits in (5, 6))
    assert str(FORMS[kind]).startswith(form.name)


@pytest.mark.parametrize("name", QUANTIZED)
def test_every_weight_of_a_model_is_that_of_the_formats_own_package(folder, load_quantized, name):
    """To the bit, but for the sign of a zero of 4-bit floats, which ggml has not."""
    found, digests = weights_of(load_quantized(folder(name), served_on="cuda")), EXPECTED[name]["digests"]
    assert len(found) >= 7
    for tensor, weight in found.items():
        values = weight + 0.0 if name == "llama-mxfp4" else weight
        assert hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest() == digests[tensor], tensor


@pytest.mark.parametrize("name", ["llama-q4_k_m", "llama-q5_1", "llama-iq4_xs"])
def test_layers_multiply_by_these_weights(folder, load_quantized, name):
    """Merged layers of several types too, alone and normed."""
    model = load_quantized(folder(name), served_on="cuda")
    weights = weights_of(model)
    for number, block in enumerate(model.blocks):
        attention, mlp = block.attention, block.mlp
        assert isinstance(mlp.down.scheme, GroupWordsScheme)
        for layer, parts in (
            (attention.qkv, ("self_attn.q", "self_attn.k", "self_attn.v")),
            (attention.output, ("self_attn.o",)),
            (mlp.gate_up, ("mlp.gate", "mlp.up")),
            (mlp.down, ("mlp.down",)),
        ):
            weight = torch.cat([weights[f"model.layers.{number}.{part}_proj.weight"] for part in parts])
            x, norm_weight = torch.randn(5, weight.shape[1]), torch.rand(weight.shape[1]) + 0.5
            torch.testing.assert_close(layer(x, None), x @ weight.T, rtol=1e-4, atol=1e-4)
            out, total = layer.scheme.apply_normed(layer, x, x, norm_weight, 1e-5, None, None)
            normed, added = residual_norm_reference(x, x, norm_weight, 1e-5)
            assert torch.equal(total, added)
            torch.testing.assert_close(out, normed @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_file_of_every_type_is_served_on_a_gpu_in_forms_that_are_told(folder, name):
    path = folder(name)
    config, spec = WorkerConfig(model=str(path), device="cuda", max_model_len=64), read_spec(path)
    needs, refusals = fit(config, Place(is_gpu=True, memory=80 << 30))
    assert refusals == []
    forms = {form for form, _ in needs.forms if isinstance(form, Groups)}
    assert forms == set(read_plan(config, spec).on("cuda").kinds)
    assert all(form.held_bits in (4, 8) and form.activations == "none" for form in forms)


@pytest.mark.parametrize("is_gpu", [True, False])
def test_ranks_that_would_divide_a_group_are_refused_before_any_starts(folder, is_gpu):
    """Half a superblock of `down` is a rank's, half a group of `output` would be."""
    config = WorkerConfig(model=str(folder("llama-q4_k_m")), max_model_len=64)
    place = Place(is_gpu=is_gpu, memory=80 << 30)
    assert fit(msgspec.structs.replace(config, tensor_parallel_size=2), place)[1] == []
    (refusal,) = fit(msgspec.structs.replace(config, tensor_parallel_size=4), place)[1]
    assert refusal.startswith(
        "tensor_parallel_size: 0..16 of 64 would be one rank's, but the checkpoint stores 32 at a time; choose"
    )
