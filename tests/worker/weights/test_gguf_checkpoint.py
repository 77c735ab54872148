"""GGUF checkpoints made by the format's own package: their weights, bit for bit, and the tokens of their models."""

import base64
import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from gguf_bytes import LLAMA, TENSORS, gguf
from gguf_meant import meant

from quire.deploy.gguf.folder import make_folder
from quire.worker.config import WorkerConfig
from quire.worker.models.build import build_model
from quire.worker.quant.form import Groups
from quire.worker.quant.read.gguf import FORMS, read_gguf
from quire.worker.quant.select import schemes_of
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import checkpoint_names, read_spec
from quire.worker.weights.gguf.blocks import LAYOUTS
from quire.worker.weights.gguf.checkpoint import DEQUANTIZED, DTYPES, GgufCheckpoint, moved_rows
from quire.worker.weights.gguf.files import read_model
from quire.worker.weights.gguf.names import checkpoint_name
from quire.worker.weights.gguf.types import TYPES
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.load import fill
from quire.worker.weights.open import open_checkpoint
from quire.worker.weights.parts import ModelError
from quire.worker.weights.revision import model_revision

MADE = Path(__file__).parent / "ggufs"
EXPECTED = json.loads((MADE / "expected.json").read_text())["models"]
BLOCKS = json.loads((MADE / "blocks.json").read_text())
DENSE = ("llama-spm-f16", "llama3-f32", "qwen2-bf16", "qwen3-split")
QUANTIZED = (
    "llama-q8_0", "llama-q4_0", "llama-q4_1", "llama-q5_0", "llama-q5_1", "llama-q4_k_m",
    "llama-iq4_nl", "llama-iq4_xs", "llama-mxfp4", "llama-q2_k", "gemma-q8_0", "gemma2-q8_0", "gemma3-f16", "phi3-q4_0",
    "glm4-q8_0", "gpt-oss-mxfp4",
)  # fmt: skip
SCALES = {"llama-q4_k_m": torch.int8, "llama-iq4_xs": torch.int8, "llama-mxfp4": torch.float8_e8m0fnu}
"""Dtypes of scales that are not float16."""
WHOLE = (slice(None), slice(None))


@pytest.fixture
def folder(tmp_path):
    """The directory that is made of a file."""

    def make(name):
        make_folder(next(MADE.glob(f"{name}*.gguf")), tmp_path / name, with_tokenizer=True)
        return tmp_path / name

    return make


@pytest.mark.parametrize("name", DENSE)
def test_weights_are_those_of_the_formats_own_package(folder, name):
    with open_checkpoint(folder(name)) as checkpoint:
        assert set(checkpoint.names()) == set(EXPECTED[name]["digests"])
        for tensor, digest in EXPECTED[name]["digests"].items():
            values = checkpoint.read(tensor, WHOLE[: len(checkpoint.shape(tensor))])
            assert hashlib.sha256(values.float().contiguous().numpy().tobytes()).hexdigest() == digest, tensor


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_weights_are_those_of_the_formats_own_package(folder, name):
    """Also the queries and keys, whose rows were moved."""
    with open_checkpoint(folder(name)) as checkpoint:
        for tensor, digest in EXPECTED[name]["digests"].items():
            values = meant(checkpoint, tensor)
            assert hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest() == digest, tensor
        for part in ("self_attn.q_proj", "self_attn.qkv_proj"):
            if (stored := f"model.layers.0.{part}.scale") in checkpoint.names():
                scale = checkpoint.read(stored, WHOLE)
                assert scale.dtype == SCALES.get(name, torch.float16)
                assert scale.shape == checkpoint.shape(stored)


@pytest.mark.parametrize(
    ("model", "tensor"),
    [
        ("llama3-f32", "self_attn.q_proj.weight"),
        ("llama3-f32", "mlp.down_proj.weight"),
        ("llama-q4_1", "self_attn.k_proj.codes"),
        ("llama-q8_0", "mlp.down_proj.codes"),
        ("llama-q4_k_m", "self_attn.v_proj.codes"),
        ("llama-q4_k_m", "self_attn.k_proj.scale"),
        ("llama-iq4_xs", "self_attn.k_proj.codes"),
        ("llama-iq4_xs", "mlp.up_proj.scale"),
        ("llama-mxfp4", "self_attn.q_proj.codes"),
        ("llama-q2_k", "self_attn.k_proj.weight"),
        ("llama-q2_k", "self_attn.v_proj.codes"),
        ("llama-q2_k", "mlp.down_proj.scale"),
    ],
)
def test_a_region_is_that_of_the_whole(folder, model, tensor):
    with GgufCheckpoint(folder(model)) as checkpoint:
        name = f"model.layers.0.{tensor}"
        whole = checkpoint.read(name, WHOLE)
        for rows in (slice(0, 8), slice(3, 13), slice(1, 15, 3), slice(8, 16)):
            region = (rows, slice(4, 20, 2))
            assert torch.equal(checkpoint.read(name, region), whole[region])


@pytest.mark.parametrize(
    "name",
    [
        "llama-spm-f16", "llama-q8_0", "llama-q4_1", "llama-q5_1", "llama-q4_k_m",
        "llama-iq4_nl", "llama-iq4_xs", "llama-mxfp4", "phi3-q4_0", "gpt-oss-mxfp4",
    ],
)  # fmt: skip
def test_two_ranks_hold_what_one_does(folder, context, put_together, name):
    path = folder(name)
    spec = read_spec(path)
    schemes = schemes_of(read_plan(WorkerConfig(model=str(path)), spec), torch.device("cpu"))
    held = []
    for size in (1, 2):
        contexts = (replace(context(rank, size), scheme_for=schemes) for rank in range(size))
        ranks = [build_model(spec, one) for one in contexts]
        with open_checkpoint(path) as checkpoint:
            for rank in ranks:
                fill(rank, checkpoint, checkpoint_names(spec), torch.device("cpu"))
        held.append(put_together(ranks))
    assert held[0].keys() == held[1].keys()
    assert all(torch.equal(*(in_bytes(each[part]) for each in held)) for part in held[0])


def in_bytes(tensor):
    return tensor.contiguous().view(torch.uint8)  # float8 has no comparison


def test_rows_of_heads_come_back_as_they_were():
    heads, half = 3, 4
    rows = torch.arange(heads * 2 * half)
    interleaved = rows.view(heads, 2, half).transpose(1, 2).flatten()  # as llama.cpp's conversion moves them
    assert torch.equal(interleaved[moved_rows(len(rows), heads, "q")], rows)
    with pytest.raises(CheckpointError, match="q: 24 rows are not 5 heads of pairs"):
        moved_rows(24, 5, "q")


def test_names_are_those_of_safetensors_checkpoints():
    decoder, encoder = ({"general.architecture": name} for name in ("qwen2", "bert"))
    assert checkpoint_name("blk.11.ffn_norm.weight", decoder) == "model.layers.11.post_attention_layernorm.weight"
    assert checkpoint_name("blk.0.attn_k.bias", decoder) == "model.layers.0.self_attn.k_proj.bias"
    assert checkpoint_name("output.weight", decoder) == "lm_head.weight"
    assert checkpoint_name("rope_freqs.weight", decoder) is None
    for unknown in ("blk.0.ffn_gate_shexp.weight", "blk.x.attn_q.weight", "position_embd.weight"):
        assert checkpoint_name(unknown, decoder) == unknown
    assert checkpoint_name("blk.11.layer_output_norm.bias", encoder) == "encoder.layer.11.output.LayerNorm.bias"
    assert checkpoint_name("position_embd.weight", encoder) == "embeddings.position_embeddings.weight"
    for unknown in ("blk.0.attn_qkv.weight", "output_norm.weight", "cls.weight"):
        assert checkpoint_name(unknown, encoder) == unknown


def write(folder, metadata=None, tensors=None):
    (folder / "model.gguf").write_bytes(gguf(LLAMA | (metadata or {}), TENSORS | (tensors or {})))
    return folder


def test_two_names_of_one_weight_are_refused(tmp_path):
    write(tmp_path, tensors={"model.norm.weight": (32,)})
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight: is there under the name output_norm\.weight, too"):
        GgufCheckpoint(tmp_path)


@pytest.mark.parametrize("heads", [0, "4", [4]])
def test_heads_that_are_no_number_are_refused(tmp_path, heads):
    write(tmp_path, {"llama.attention.head_count_kv": heads})
    with pytest.raises(CheckpointError, match=r"attn_k\.weight: llama\.attention\.head_count_kv must be a positive"):
        GgufCheckpoint(tmp_path)


def test_a_file_that_was_cut_meanwhile_is_refused(tmp_path):
    checkpoint = GgufCheckpoint(write(tmp_path))
    with (tmp_path / "model.gguf").open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(CheckpointError, match=r"model\.gguf: was changed while it was read; start again"):
        checkpoint.read("model.norm.weight", (slice(None),))
    (tmp_path / "model.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"model\.gguf: cannot be read"):
        checkpoint.read("model.norm.weight", (slice(None),))


@pytest.mark.parametrize(("kind", "name"), [(16, "IQ2_XXS"), (40, "NVFP4")])
def test_other_types_are_refused_by_name_with_the_remedy(tmp_path, kind, name):
    write(tmp_path, tensors={"blk.0.ffn_up.weight": (kind, (1, 256))})
    with pytest.raises(ModelError, match=rf"model\.gguf: blk\.0\.ffn_up\.weight: is {name}, which is not read") as said:
        read_gguf(read_model(tmp_path))
    assert "; use a file of F32, F16, BF16, Q8_0, " in str(said.value)
    assert "Q6_K, Q3_K, Q2_K, IQ4_NL, IQ4_XS, MXFP4 alone, or" in str(said.value)
    with pytest.raises(CheckpointError, match=rf"blk\.0\.ffn_up\.weight: is {name} of 2 axes; that is not read"):
        GgufCheckpoint(tmp_path).read("model.layers.0.mlp.up_proj.weight", WHOLE)


def test_a_quantized_vector_is_refused(tmp_path):
    write(tmp_path, tensors={"output_norm.weight": (8, (32,))})
    with pytest.raises(ModelError, match=r"model\.gguf: output_norm\.weight: is Q8_0 and no matrix; use a file of F32"):
        read_gguf(read_model(tmp_path))
    with pytest.raises(CheckpointError, match=r"output_norm\.weight: is Q8_0 of 1 axes; that is not read"):
        GgufCheckpoint(tmp_path).read("model.norm.codes", (slice(None),))


def test_experts_of_three_axes_are_no_matrix(tmp_path):
    write(tmp_path, tensors={"blk.0.ffn_up.weight": (39, (2, 32, 32))})
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_up\.weight: is MXFP4 and no matrix; use a file of F32"):
        read_gguf(read_model(tmp_path))


@pytest.mark.parametrize("number", [number for number, one in TYPES.items() if one.name in BLOCKS])
def test_what_is_read_of_an_expert_is_what_its_blocks_are_in_a_matrix(tmp_path, number):
    kind, inputs = TYPES[number], 8 * TYPES[number].block
    raw = base64.b64decode(BLOCKS[kind.name]["blocks"])
    stored = {"ffn_up_exps": (number, (2, 1, inputs), raw), "ffn_up": (number, (2, inputs), raw)}
    write(tmp_path, tensors={f"blk.0.{name}.weight": tensor for name, tensor in stored.items()})
    checkpoint = GgufCheckpoint(tmp_path)
    parts = [name for name in checkpoint.names() if ".experts." in name]
    assert len(parts) >= (1 if kind.name == DEQUANTIZED else 2)
    for name in parts:
        matrix = name.replace(".experts.", ".")
        assert checkpoint.shape(name) == (2, 1, checkpoint.shape(matrix)[1])
        one = checkpoint.read(name, (slice(1, 2), slice(None), slice(1, 5)))
        assert torch.equal(in_bytes(one[0]), in_bytes(checkpoint.read(matrix, (slice(1, 2), slice(1, 5)))))


@pytest.mark.parametrize(
    ("tensor", "part"), [("token_embd", "embed_tokens.scale"), ("blk.0.ffn_up", "layers.0.mlp.up_proj.scale")]
)
@pytest.mark.parametrize(("kind", "number"), [(8, b"\x00\x7e"), (20, b"\x00\x7c"), (39, b"\xff\x22")])
def test_scales_that_are_no_numbers_are_refused(tmp_path, tensor, part, kind, number):
    """NaN, infinity, and the power of two that is none."""
    write(tmp_path, tensors={f"{tensor}.weight": (kind, (32, 32))})
    path = tmp_path / "model.gguf"
    raw = bytearray(path.read_bytes())
    at = read_model(tmp_path).tensors[f"{tensor}.weight"].offset
    raw[at : at + 2] = number
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match="holds a scale that nothing can be computed with"):
        GgufCheckpoint(tmp_path).read(f"model.{part}", WHOLE)


def test_the_plan_has_a_form_for_each_layer_and_the_embedding(folder):
    forms = {"llama-q8_0": Groups(8, 32), "llama-q4_0": Groups(4, 32), "llama-q4_1": Groups(4, 32, "minima")}
    for name, form in forms.items():
        path = folder(name)
        plan = read_plan(WorkerConfig(model=str(path), dtype="float32"), read_spec(path))
        heads = {"head"} if name == "llama-q4_1" else set()
        assert plan.forms.keys() >= {"blocks.0.attention.qkv.q", "blocks.0.mlp.down", "embedding", *heads}
        assert (plan.method, set(plan.forms.values())) == ("gguf", {form})
    for name in DENSE:
        path = folder(name)
        spec = read_spec(path)
        assert read_plan(WorkerConfig(model=str(path)), spec).method == "none"
        assert read_plan(WorkerConfig(model=str(path), quantization="int8"), spec).on_the_fly


def test_blocks_are_unpacked_as_their_forms_are_stated():
    groups = {kind: form for kind, form in FORMS.items() if isinstance(form, Groups)}
    for kind, form in groups.items():
        stated = (form.bits, form.offset == "minima", form.size, form.superblock, form.table)
        one = LAYOUTS[kind]
        assert stated == (one.bits, one.has_minima, one.size, one.block if one.has_units else None, one.table)
        assert form.scale == ("float8_e8m0fnu" if kind == "MXFP4" else "float16")
    assert groups.keys() == LAYOUTS.keys()
    sizes = {kind.name: (kind.block, kind.block_bytes) for kind in TYPES.values()}
    for kind, form in groups.items():  # 5 and 6 bits too: no byte more than in the file, but for whole bytes of scales
        block, size = sizes[kind]
        assert LAYOUTS[kind].block == block
        size = sizes["Q6_K"][1] if kind == "Q3_K" else size  # as which it is held
        assert size <= form.num_bytes(1, 256) * block // 256 <= size * 1.03
    assert FORMS.keys() - groups.keys() == DTYPES.keys() | {DEQUANTIZED}


def test_a_quantization_beside_that_of_the_file_is_refused(folder):
    path = folder("llama-q8_0")
    with pytest.raises(ModelError, match="quantization: int8 is asked for, but the checkpoint is gguf"):
        read_plan(WorkerConfig(model=str(path), quantization="int8"), read_spec(path))


def test_a_folder_with_safetensors_is_no_gguf_folder(tmp_path):
    write(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        open_checkpoint(tmp_path)


def test_the_digest_of_a_model_is_that_of_its_files(folder):
    paths = {name: folder(name) for name in ("llama3-f32", "qwen3-split")}
    made = {name: model_revision(path) for name, path in paths.items()}
    assert len(set(made.values())) == 2
    second = paths["qwen3-split"] / "qwen3-split-00002-of-00002.gguf"
    raw = bytearray(second.read_bytes())
    second.unlink()
    raw[-1] ^= 1
    second.write_bytes(raw)
    assert model_revision(paths["qwen3-split"]) != made["qwen3-split"]


def test_parts_of_a_merged_layer_may_be_of_several_types(tmp_path, context):
    kinds = {
        "attn_q": (2, (32, 32)), "attn_k": (20, (16, 32)), "attn_v": (1, (16, 32)),
        "ffn_gate": (39, (32, 32)), "ffn_up": (8, (32, 32)),
    }  # fmt: skip
    write(tmp_path, tensors={f"blk.0.{name}.weight": given for name, given in kinds.items()})
    make_folder(tmp_path / "model.gguf", tmp_path / "made", with_tokenizer=True)
    spec = read_spec(tmp_path / "made")
    plan = read_plan(WorkerConfig(model=str(tmp_path / "made")), spec)
    named = {path.removeprefix("blocks.0."): form.name for path, form in plan.forms.items()}
    assert named == {
        "attention.qkv.q": "4-bit groups",
        "attention.qkv.k": "4-bit table groups",
        "mlp.gate_up.gate": "4-bit float groups",
        "mlp.gate_up.up": "8-bit groups",
    }
    model = build_model(spec, replace(context(), scheme_for=schemes_of(plan, torch.device("cpu"))))
    with open_checkpoint(tmp_path / "made") as checkpoint:
        assert fill(model, checkpoint, checkpoint_names(spec), torch.device("cpu")) > 0
