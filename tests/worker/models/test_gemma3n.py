"""Gemma 3n: its text without towers, files as they are published, sparse gates on ranks, and what is refused."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.gemma3n import modeling_gemma3n

from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.mlp import SparseGate
from quire.worker.models.build import load_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.select import schemes_of
from quire.worker.specs import sizes
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import parse_spec, read_spec
from quire.worker.weights.parts import ModelError

TEXT = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "sliding_window": 21,
    "num_kv_shared_layers": 3,
    "hidden_size_per_layer_input": 9,
    "vocab_size_per_layer_input": 320,
    "laurel_rank": 5,
    "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0, 0.0, 0.0],
}
HEARING = {"conf_num_hidden_layers": 1, "conf_num_attention_heads": 2, "hidden_size": 16, "vocab_offset": 340}
SEEING = {"hidden_size": 24, "vocab_offset": 320, "vocab_size": 20}


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory):
    """(the library's model, whose tower for images is a double: its own needs another package; its folder)"""
    config = transformers.Gemma3nConfig(
        text_config=TEXT, vision_config=SEEING, audio_config={**HEARING, "vocab_size": 20}, pad_token_id=0
    )
    make = modeling_gemma3n.AutoModel.from_config

    def without_timm(config, **options):
        return torch.nn.Linear(3, 24) if config.model_type == "gemma3n_vision" else make(config, **options)

    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modeling_gemma3n.AutoModel, "from_config", without_timm)
        model = transformers.Gemma3nForConditionalGeneration(config).eval()
    for name, values in model.named_parameters():
        if values.ndim == 1 and ("norm" in name or "output_scale" in name):
            torch.nn.init.normal_(values, mean=1.0, std=0.2)
        if name.endswith("modality_router.weight"):
            torch.nn.init.normal_(values, std=3.0)
    path = tmp_path_factory.mktemp("wrapped")
    model.save_pretrained(path)
    return model, path


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chunk", [1 << 30, 5])
def test_the_text_of_a_model_with_towers_is_that_of_transformers(chunk, wrapped, load, greedy, prompts):
    model, folder = wrapped
    with torch.inference_mode():
        made = model.generate(torch.tensor([prompts[-1]]), max_new_tokens=24, do_sample=False, eos_token_id=None)
    (row,) = greedy(load(folder, language_only=True)).generate([prompts[-1]], 24, chunk=chunk)
    assert row.tokens == made[0].tolist()


def test_a_model_with_towers_is_refused_unless_its_text_alone_is_asked_for(wrapped):
    with pytest.raises(ModelError, match=r"ForConditionalGeneration are not read; set language_model_only") as caught:
        read_spec(wrapped[1])
    assert caught.value.field == "architectures"


def test_published_files_hold_keys_of_layers_that_read_anothers(tiny_checkpoint, load, greedy, prompts, tmp_path):
    """They are left unread; and bases of ropes are stated as they were first."""
    folder = tiny_checkpoint("Gemma3nForCausalLM", **TEXT)
    published = tmp_path / "published"
    shutil.copytree(folder, published)
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]
    stated = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": None, "intermediate_size": [96] * 6}
    (published / "config.json").write_text(json.dumps({**config, **stated}))
    tensors = load_file(folder / "model.safetensors")
    for layer in (3, 4, 5):
        path = f"model.layers.{layer}.self_attn"
        unread = {f"{path}.{name}_proj.weight": torch.full((32, 64), torch.nan) for name in "kv"}
        unread[f"{path}.k_norm.weight"] = torch.full((16,), torch.nan)
        assert not unread.keys() & tensors.keys()
        tensors |= unread
    save_file(tensors, published / "model.safetensors")
    rows, published_rows = (greedy(load(one)).generate(prompts[:3], 8) for one in (folder, published))
    assert [row.tokens for row in rows] == [row.tokens for row in published_rows]


def test_a_stream_that_is_all_but_nothing_stays_small(tiny_checkpoint, load, greedy, reference, prompts, tmp_path):
    """At either end of the streams."""
    folder = tmp_path / "small"
    shutil.copytree(tiny_checkpoint("Gemma3nForCausalLM", **TEXT), folder)
    tensors = load_file(folder / "model.safetensors")
    for name in ("altup_projections.1", "altup_unembed_projections.0"):
        tensors[f"model.{name}.weight"].mul_(1e-4)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    rows = greedy(load(folder)).generate(prompts[:5], 8)
    for row, (tokens, logprobs) in zip(rows, reference(folder, prompts[:5], 8), strict=True):
        assert row.tokens == tokens
        assert row.logprobs == pytest.approx(logprobs, abs=1e-4)


def test_layers_that_read_anothers_keys_take_no_memory():
    spec = parse_spec({**TEXT, "architectures": ["Gemma3nForCausalLM"]}, {})
    assert [layer.attention.reads for layer in spec.layers] == [None, None, None, 1, 2, 1]
    assert [(layer.head_dim, layer.window) for layer in spec.kv_layers(1)] == [(16, 21), (16, None), (16, 21)]


@pytest.mark.parametrize("quantization", ["int8", "fp8", "int4"])
def test_projections_of_streams_are_quantized_on_the_fly_and_memory_is_what_was_counted(
    quantization, tiny_checkpoint, load, greedy, prompts
):
    sizes_of = {"hidden_size": 128, "intermediate_size": 256, "laurel_rank": 64, "hidden_size_per_layer_input": 32}
    folder = tiny_checkpoint("Gemma3nForCausalLM", **{**TEXT, **sizes_of})
    spec = read_spec(folder)
    plan = read_plan(WorkerConfig(model=str(folder), quantization=quantization, dtype="float32"), spec)
    context = BuildContext(SingleGroup(), torch.device("cpu"), torch.float32, schemes_of(plan, torch.device("cpu")))
    rounded = load_model(folder, spec, context, plan=plan).model
    for product in (rounded.streams.spread, rounded.streams.gather[1], rounded.blocks[0].laurel.left):
        assert type(product.scheme) is type(rounded.blocks[0].attention.output.scheme) is not DenseScheme
    found = [greedy(model).generate([prompts[-1]], 1)[0].logits[0] for model in (load(folder), rounded)]
    assert torch.corrcoef(torch.stack(found))[0, 1] > (0.8 if quantization == "int4" else 0.97)
    assert sum(sizes.count(spec, 1).bytes_by_form(4, plan.on("cpu")).values()) == rounded.weight_bytes


class Gathered(SingleGroup):
    """The second of three ranks, beside which the others hold what they are said to."""

    rank, size = 1, 3

    def __init__(self, others):
        self._others = others

    def all_gather(self, tensor):
        return torch.cat([self._others[0], tensor, self._others[1]], -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gates_are_cut_off_at_the_bound_of_all_ranks(dtype):
    generator = torch.Generator().manual_seed(0)
    gate = (torch.randn(4, 60, generator=generator) * 3 + torch.linspace(-5, 5, 60)).to(dtype)
    up = torch.randn(4, 60, generator=generator).to(dtype)
    sums = [torch.stack((one.float().mean(-1), one.float().var(-1, correction=0)), -1) for one in gate.chunk(3, -1)]
    whole = SparseGate(SingleGroup(), 0.7)(torch.cat((gate, up), -1))
    wide = gate.float()
    bound = wide.mean(-1, keepdim=True) + 0.5244005 * wide.std(-1, correction=0, keepdim=True)
    torch.testing.assert_close(whole[:, :60], (wide - bound).relu().to(dtype))
    assert whole[:, :60].count_nonzero() < 0.4 * gate.numel()
    assert torch.equal(whole[:, 60:], up)
    share = SparseGate(Gathered((sums[0], sums[2])), 0.7)(torch.cat((gate[:, 20:40], up[:, 20:40]), -1))
    torch.testing.assert_close(share[:, :20], whole[:, 20:40])
    assert torch.equal(share[:, 20:], up[:, 20:40])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"altup_num_inputs": 1}, "altup_num_inputs"),
        ({"altup_num_inputs": 17}, "altup_num_inputs"),
        ({"altup_active_idx": 4}, "altup_active_idx"),
        ({"activation_sparsity_pattern": [0.5]}, "activation_sparsity_pattern"),
        ({"activation_sparsity_pattern": 0.5}, "activation_sparsity_pattern"),
        ({"activation_sparsity_pattern": [1.0] + [0.0] * 5}, "activation_sparsity_pattern"),
        ({"activation_sparsity_pattern": [True] + [0.0] * 5}, "activation_sparsity_pattern"),
        ({"intermediate_size": [96] * 5}, "intermediate_size"),
        ({"intermediate_size": [96] * 5 + [0]}, "intermediate_size"),
        ({"hidden_size_per_layer_input": 0}, "hidden_size_per_layer_input"),
        ({"laurel_rank": None}, "laurel_rank"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_what_is_not_served_is_refused_by_its_name(changes, field):
    with pytest.raises(ModelError) as caught:
        parse_spec({**TEXT, "architectures": ["Gemma3nForCausalLM"], **changes}, {})
    assert caught.value.field == field
