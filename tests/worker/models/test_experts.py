"""Models of experts, token for token against transformers: whole, in chunks, padded, with experts that stand idle."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import pad

from quire.kernels.experts.route import MOST_EXPERTS
from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.expert_choice import ExpertChoice
from quire.worker.models.build import build_model, load_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs import sizes
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.registry import parse_spec, read_spec
from quire.worker.step.expert_counts import ExpertCounts
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.parts import ModelError

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from core_engine import Engine
from expert_models import MODELS, seen_experts
from full_configs import full_config
from library_alike import compare

PADDING = 5


@pytest.fixture(params=MODELS)
def folder(request, tiny_checkpoint):
    architecture, config = MODELS[request.param]
    return tiny_checkpoint(architecture, **config)


def same(rows, expected):
    for row, (tokens, logprobs) in zip(rows, expected, strict=True):
        assert row.tokens == tokens
        assert row.logprobs == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.thorough
def test_batches_and_chunks_give_the_tokens_of_transformers(folder, load, greedy, reference, prompts):
    some = prompts[::3]
    decoder = load(folder)
    expected = reference(folder, some, 24)
    assert len({tuple(tokens[-24:]) for tokens, _ in expected}) == len(some)  # no model that always says the same
    with seen_experts(decoder) as seen:
        same(greedy(decoder).generate(some, 24), expected)
    assert all(len(chosen) > 2 for chosen in seen)
    for chunk in (1, 3, 5):
        same(greedy(decoder).generate(some, 24, chunk=chunk), expected)


@pytest.mark.sampled(2)
def test_a_sequence_that_starts_on_anothers_cached_blocks_goes_on_alike(folder, load, greedy, reference, prompts):
    engine, prompt = greedy(load(folder)), prompts[-1]
    (first,) = engine.generate([prompt], 8)
    in_others = [blocks[:5] for blocks in first.in_others]
    second = type(first)(list(prompt), 40, first.blocks[:5], in_others)
    while len(second.tokens) < len(first.tokens):
        engine.step([(second, min(3, len(second.tokens) - second.num_computed))])
    same([second], reference(folder, [prompt], 8))


@pytest.mark.sampled(3)
def test_what_each_expert_was_sent_is_counted_and_the_start_is_not(folder, prompts):
    engine = Engine(folder, enforce_eager=True)
    assert not any(counted(engine.report()))
    with seen_experts(engine.runner._model) as seen:
        for number, prompt in enumerate(prompts[::4]):
            engine.submit(number, prompt)
        engine.settle()
    report = engine.report()
    assert counted(report) == [dict(chosen) for chosen in seen]
    layers = [number for number, block in enumerate(engine.runner._model.blocks) if hasattr(block.mlp, "experts")]
    assert list(report.layers) == layers
    assert engine.report() is None  # nothing new


def counted(report):
    """By layer, the tokens of each expert that was sent any."""
    rows = np.frombuffer(report.counts, np.int64).reshape(len(report.layers), -1).tolist()
    return [{expert: count for expert, count in enumerate(row) if count} for row in rows]


@pytest.mark.sampled(3)
def test_padding_reaches_no_expert_and_changes_nothing(folder, load, greedy, prompts):
    class Padded(greedy):
        """Each step has rows behind its last token, as a captured step has."""

        def _batch(self, work):
            batch = super()._batch(work)
            columns = {name: pad(getattr(batch, name), (0, PADDING)) for name in ("token_ids", "positions")}
            padded = (pad(group.slot_mapping, (0, PADDING), value=-1) for group in batch.groups)
            groups = (replace(group, slot_mapping=one) for group, one in zip(batch.groups, padded, strict=True))
            return replace(batch, **columns, groups=tuple(groups))

    decoder = load(folder)
    with seen_experts(decoder) as plainly:
        plain = greedy(decoder).generate(prompts[:4], 6)
    with seen_experts(decoder) as padded_seen:
        padded = Padded(decoder).generate(prompts[:4], 6)
    assert [row.tokens for row in padded] == [row.tokens for row in plain]
    assert padded_seen == plainly


def test_experts_that_no_token_reaches_may_hold_anything(folder, load, greedy, reference, prompts):
    """An expert that is not chosen is never read: its weights are NaN here."""
    decoder = load(folder)
    expected = reference(folder, prompts[:1], 4)
    with seen_experts(decoder) as seen:
        greedy(decoder).generate(prompts[:1], 4)
    layers = [block.mlp for block in decoder.blocks if hasattr(block.mlp, "experts")]
    idle = 0
    for layer, chosen in zip(layers, seen, strict=True):
        for expert in set(range(layer.choice.routing.num_experts)) - chosen.keys():
            layer.experts.stored("gate_up")[expert] = torch.nan
            layer.experts.stored("down")[expert] = torch.nan
            idle += 1
    assert idle
    same(greedy(decoder).generate(prompts[:1], 4), expected)


@pytest.mark.parametrize(
    ("name", "further"),
    [
        ("glm 4.5: sigmoids, groups, half a head rotates", "model.layers.3.eh_proj.weight"),
        ("minimax m2: sigmoids, norms over all heads", "model.layers.4.self_attn.q_proj.weight"),
        ("ernie 4.5: a bias beside a softmax", "model.mtp_block.0.mlp.gate.weight"),
    ],
)
def test_layers_that_predict_further_tokens_are_left_alone(name, further, tiny_checkpoint, tmp_path, load):
    architecture, config = MODELS[name]
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint(architecture, **config), folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, further: torch.zeros(3)}, folder / "model.safetensors")
    load(folder)
    save_file({**tensors, "model.layers.9.mlp.gate.weight": torch.zeros(3)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="no place for it"):
        load(folder)


def built(config, size=1, spec=None):
    class FirstRank(SingleGroup):
        def __init__(self):
            self.size = size

    context = BuildContext(FirstRank(), torch.device("meta"), torch.float32, everywhere(DenseScheme()))
    return build_model(spec or parse_spec(config, {}), context)


@pytest.mark.sampled(2)
def test_dummy_weights_serve_too(folder, greedy, prompts):
    context = BuildContext(SingleGroup(), torch.device("cpu"), torch.float32, everywhere(DenseScheme()))
    decoder = load_model(folder, read_spec(folder), context, "dummy").model
    (row,) = greedy(decoder).generate(prompts[:1], 4)
    assert len(row.tokens) == len(prompts[0]) + 4


QWEN3 = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "intermediate_size": 96,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}

GLM = {"architectures": ["Glm4MoeForCausalLM"], "n_routed_experts": 6, "num_key_value_heads": 4}


def kinds(config):
    return ["dense" if layer.dense else "experts" for layer in parse_spec({**QWEN3, **config}, {}).layers]


def test_experts_stand_where_the_config_says():
    assert kinds({"decoder_sparse_step": 2}) == ["dense", "experts"] * 2
    assert kinds({"mlp_only_layers": [0, 3]}) == ["dense", "experts", "experts", "dense"]
    assert kinds({}) == ["experts"] * 4


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("Qwen2MoeForCausalLM", {"decoder_sparse_step": 5}),
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": [0, 1, 2, 3]}),
        ("Glm4MoeForCausalLM", {"first_k_dense_replace": 4}),
        ("Dots1ForCausalLM", {"first_k_dense_replace": 9}),
        ("Ernie4_5_MoeForCausalLM", {"moe_layer_start_index": 4}),
        ("Llama4ForCausalLM", {"moe_layers": []}),
    ],
)
def test_an_architecture_of_experts_may_have_no_layer_with_any(architecture, changes, tmp_path):
    config = full_config(architecture) | changes
    compare(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    needs, refusals = fit(WorkerConfig(model=str(tmp_path)), Place(False, None))
    assert (needs.experts, refusals) == ("", [])


@pytest.mark.parametrize("stated", [None, "sigmoid", "noaux_tc"])
def test_experts_chosen_as_deepseek_does_are_scored_by_sigmoids_under_every_name(stated):
    assert parse_spec({**QWEN3, **GLM, "scoring_func": stated}, {}) == parse_spec({**QWEN3, **GLM}, {})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_experts_per_tok": 7}, "num_experts_per_tok"),
        ({"num_experts": 0}, "num_experts"),
        ({"num_experts": MOST_EXPERTS + 1}, "num_experts"),
        ({"num_experts": 10**9}, "num_experts"),
        ({"num_experts": MOST_EXPERTS, "num_hidden_layers": 4000}, "num_hidden_layers"),
        ({**GLM, "n_routed_experts": 5000}, "n_routed_experts"),
        ({"mlp_only_layers": "first"}, "mlp_only_layers"),
        ({"architectures": ["OlmoeForCausalLM"], "intermediate_size": 24, "clip_qkv": 8.0}, "clip_qkv"),
        ({**GLM, "n_group": 5}, "n_group"),
        ({**GLM, "n_group": 6}, "n_group"),
        ({**GLM, "n_group": 3, "topk_group": 4}, "topk_group"),
        ({**GLM, "n_group": 3, "num_experts_per_tok": 3}, "topk_group"),
        ({**GLM, "scoring_func": "softmax"}, "scoring_func"),
        ({"architectures": ["Ernie4_5_MoeForCausalLM"], "use_bias": True}, "use_bias"),
        ({"architectures": ["Ernie4_5_MoeForCausalLM"], "moe_norm_min": 0.5}, "moe_norm_min"),
        ({"architectures": ["Ernie4_5_MoeForCausalLM"], "moe_k": 65}, "moe_k"),
        ({"architectures": ["Ernie4_5_MoeForCausalLM"], "moe_num_experts": 0}, "moe_num_experts"),
    ],
)
def test_what_is_not_served_is_refused_by_its_name(changes, field):
    with pytest.raises(ModelError) as caught:
        parse_spec({**QWEN3, **changes}, {})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("num_experts", "remedy"),
    [(15, "dividing it$"), (16, "dividing it, or set enable_expert_parallel, which deals whole experts$")],
)
def test_an_inner_axis_that_ranks_cannot_share_is_named_as_the_config_has_it(num_experts, remedy):
    wide = {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 4, "num_experts": num_experts}
    said = "moe_intermediate_size: 24 cannot be divided among 16 ranks; choose a tensor_parallel_size "
    with pytest.raises(ModelError, match=said + remedy):
        built({**QWEN3, **wide}, 16)


def test_ranks_that_are_dealt_experts_are_counted_as_they_are_built():
    config = {**QWEN3, "moe_intermediate_size": 25, "head_dim": 12, "num_attention_heads": 8, "num_key_value_heads": 8}
    spec = parse_spec(config, {}).dealing
    for size in (1, 2, 4):
        model = built(config, size, spec)
        assert sizes.count(spec, size).num_parameters == sum(one.numel() for one in model.parameters())
        assert len(model.blocks[0].mlp.experts.gate_up) == {1: 6, 2: 3, 4: 2}[size]
    assert sizes.indivisible(spec, 4) == []
    with pytest.raises(ModelError, match="enable_expert_parallel: 6 experts cannot be dealt to 8 ranks"):
        sizes.count(spec, 8)


@pytest.mark.parametrize(("size", "begins"), [(1, ()), (2, (0, 3)), (4, (0, 2, 4, 5))])
def test_what_ranks_were_sent_is_told_apart_by_the_first_expert_of_each(size, begins):
    spec = next(iter(parse_spec(QWEN3, {}).dealing.experts))
    assert ExpertCounts({0: ExpertChoice(spec)}, 8, size, Device("cpu", 0)).report().begins == begins


def test_models_without_experts_are_dealt_none(tiny_checkpoint):
    needs, (refusal,) = fit(WorkerConfig(model=str(tiny_checkpoint()), enable_expert_parallel=True), Place(False, None))
    assert needs is None
    assert refusal == "enable_expert_parallel: LlamaForCausalLM has no experts; leave it out"


@pytest.mark.parametrize(
    ("options", "stated", "refusal"),
    [
        (
            {"quantization": "fp8", "model_impl": "transformers"},
            None,
            "quantization: fp8 packs experts, which modules of",
        ),
        (
            {"model_impl": "transformers"},
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            "quantization_config: fp8 packs experts, which modules of transformers",
        ),
    ],
)
def test_what_packs_no_experts_is_refused_by_name(options, stated, refusal, tiny_checkpoint, tmp_path, described_here):
    import json

    architecture, config = MODELS["mixtral"]
    shutil.copytree(tiny_checkpoint(architecture, **config), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    if stated is not None:
        path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": stated}))
    needs, refusals = fit(WorkerConfig(model=str(path.parent), **options), Place(False, None))
    assert needs is None
    assert len(refusals) == 1
    assert refusal in refusals[0]
