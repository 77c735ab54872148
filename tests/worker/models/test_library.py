"""Modules of the transformers library in our worker, token for token against the library alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from parts import forked
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.vaultgemma.modeling_vaultgemma import VaultGemmaRMSNorm

from quire.kernels.cpu import native
from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups, SingleGroup
from quire.worker.models.build import describe, load_model
from quire.worker.models.library.modules import SERVED, find_class
from quire.worker.models.library.norms import Normed, put_norms
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs.library import apart
from quire.worker.specs.library.apart import describe_apart
from quire.worker.specs.library.choice import TAKEN, not_taken
from quire.worker.specs.library.spec import LibrarySpec
from quire.worker.specs.registry import read_spec
from quire.worker.specs.sizes import count, indivisible
from quire.worker.specs.spec import ModelSpec
from quire.worker.start import start
from quire.worker.weights.parts import ModelError

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from library_models import BASE, MODELS, TOLD_BY_MASK, generated, write

pytestmark = pytest.mark.integration

LIBRARY = ("transformers.models.auto.modeling_auto",)
"""What a process imports that runs modules of the library."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(architecture, fields) -> folder`"""
    folders: dict[str, Path] = {}

    def make(architecture, fields):
        if architecture not in folders:
            folders[architecture] = tmp_path_factory.mktemp("library")
            write(folders[architecture], architecture, fields)
        return folders[architecture]

    return make


def loaded(folder, dtype=torch.float32, load_format="auto"):
    spec = read_spec(folder, impl="transformers", describe=describe)
    context = BuildContext(SingleGroup(), torch.device("cpu"), dtype, everywhere(DenseScheme()))
    return load_model(folder, spec, context, load_format)


def same(rows, expected):
    for row, (tokens, logprobs) in zip(rows, expected, strict=True):
        assert row.tokens == tokens
        assert row.logprobs == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("architecture", MODELS)
def test_whole_prompts_chunks_and_cached_blocks_give_the_tokens_of_transformers(architecture, made, greedy, prompts):
    folder = made(architecture, MODELS[architecture])
    model = loaded(folder).model
    some = [prompts[0], prompts[4], prompts[-1]]
    expected = generated(folder, some, 8)
    same(greedy(model).generate(some, 8), expected)
    engine = greedy(model)
    rows = engine.generate(some, 8, chunk=3)
    same(rows, expected)
    last = rows[-1]
    tables = zip((last.blocks, *last.in_others), engine.cache.layout.block_sizes, strict=True)
    first, *others = (blocks[: 32 // size] for blocks, size in tables)
    second = type(last)(list(some[-1]), 32, first, others)
    while len(second.tokens) < len(last.tokens):
        engine.step([(second, min(5, len(second.tokens) - second.num_computed))])
    same([second], expected[-1:])


@pytest.mark.parametrize(
    ("architecture", "count"),
    [("ArceeForCausalLM", 7), ("HeliumForCausalLM", 7), ("VaultGemmaForCausalLM", 0), ("GPT2LMHeadModel", 0)],
)
def test_norms_that_our_kernel_knows_are_its_own(architecture, count, made):
    """A gain of `1 + weight` and norms with a mean are left to the library."""
    model = loaded(made(architecture, MODELS[architecture])).model
    assert sum(isinstance(one, Normed) for one in model.trunk.modules()) == count


def test_of_norms_with_the_same_epsilon_those_of_another_class_are_left_alone(monkeypatch):
    """Also on a machine with a GPU that has compiled nothing for its processor."""
    monkeypatch.setattr(native, "library", lambda: native.load("abacus"))
    trunk = torch.nn.Sequential(LlamaRMSNorm(8, 1e-6), VaultGemmaRMSNorm(8, 1e-6), LlamaRMSNorm(8, 1e-6))
    put_norms(trunk)
    assert [isinstance(one, Normed) for one in trunk] == [True, False, True]


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "DeepseekV3ForCausalLM", "GraniteSWAForCausalLM"])
def test_memory_is_counted_as_it_is_loaded(architecture, made):
    found = loaded(made(architecture, MODELS[architecture]))
    sizes = count(found.model.spec, 1)
    total = sum(parameter.numel() for parameter in found.model.parameters())
    assert sizes.num_parameters + sizes.padding == total


def config_of(folder, **fields):
    settings = {"device": "cpu", "max_num_seqs": 4, "max_num_batched_tokens": 64, "kv_cache_memory_bytes": 8 << 20}
    return WorkerConfig(model=str(folder), num_threads=1, dtype="float32", **settings, **fields)


@pytest.mark.parametrize("architecture", TOLD_BY_MASK)
def test_what_is_told_to_attention_by_a_mask_alone_is_refused_at_the_start(architecture, made):
    config = config_of(made(architecture, TOLD_BY_MASK[architecture]), model_impl="transformers")
    with pytest.raises(ModelError, match="gives other results with attention of quire"):
        start(config, 0, Device("cpu", 0), Groups)


def test_a_start_narrows_windows_for_the_trial_alone(made):
    config = config_of(made("CwmForCausalLM", MODELS["CwmForCausalLM"]))
    started = start(config, 0, Device("cpu", 0), Groups)
    assert set(started.facts.windows) == {20, 0}
    widths = {getattr(module, "sliding_window", None) for module in started.executor._model.trunk.modules()}
    assert widths == {20, None}


def test_auto_takes_the_library_for_what_the_table_lacks_alone(made, tiny_checkpoint):
    theirs, ours = made("ArceeForCausalLM", MODELS["ArceeForCausalLM"]), tiny_checkpoint()
    assert isinstance(read_spec(ours, describe=describe), ModelSpec)
    spec = read_spec(theirs, describe=describe)
    assert isinstance(spec, LibrarySpec)
    assert "none of its own" in spec.reason
    asked = read_spec(ours, impl="transformers", describe=describe)
    assert isinstance(asked, LibrarySpec)
    assert "asks" in asked.reason
    with pytest.raises(ModelError, match=r"ArceeForCausalLM'\] is not supported"):
        read_spec(theirs, impl="quire")


@pytest.fixture(params=["forked", pytest.param("started", marks=pytest.mark.thorough)])
def another_process(monkeypatch, request):
    """The process that describes a model: forked from one that has imported the library, or as it is."""
    apart._describe.cache_clear()
    if request.param == "started":
        return

    def run(command, timeout, **options):
        return forked.run(command, imports=LIBRARY, **options)

    names = {"DEVNULL": subprocess.DEVNULL, "TimeoutExpired": subprocess.TimeoutExpired}
    monkeypatch.setattr(apart, "subprocess", SimpleNamespace(run=run, **names))


@pytest.mark.usefixtures("another_process")
def test_another_process_describes_a_model_alike(made):
    folder = made("DeepseekV3ForCausalLM", MODELS["DeepseekV3ForCausalLM"])
    assert describe_apart(folder) == describe(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["NoModelForCausalLM"]}, "is no model of transformers"),
        ({"architectures": ["BloomForCausalLM"], "model_type": "bloom"}, "has no interface for attention of others"),
        ({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "keeps a state of its own"),
        ({"architectures": ["RwkvForCausalLM"], "model_type": "rwkv"}, "keeps a state of its own"),
        ({"architectures": ["Lfm2ForCausalLM"], "layer_types": ["conv", *["full_attention"] * 2]}, "no KV cache holds"),
        ({"architectures": ["MiniMaxForCausalLM"]}, "layers of linear_attention, whose state no KV cache holds"),
        ({"architectures": ["HrmTextForCausalLM"], "model_type": "hrm_text"}, "q_proj.weight and .* which is not read"),
        ({"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n"}, "has more in it than text"),
        ({"num_hidden_layers": 10**7}, "num_hidden_layers"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "angles of a dynamic rope"),
    ],
)
def test_what_the_library_cannot_do_with_us_is_refused_by_name(changes, message, made, tmp_path):
    folder = made("ArceeForCausalLM", MODELS["ArceeForCausalLM"])
    stated = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stated | {"dtype": "float32"} | changes))
    with pytest.raises(ModelError, match=message):
        read_spec(tmp_path, impl="transformers", describe=describe)


@pytest.mark.usefixtures("another_process")
def test_another_process_refuses_it_alike(made, tmp_path):
    folder = made("ArceeForCausalLM", MODELS["ArceeForCausalLM"])
    stated = json.loads((folder / "config.json").read_text())
    changes = {"architectures": ["BloomForCausalLM"], "model_type": "bloom", "dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(stated | changes))
    with pytest.raises(ModelError, match="has no interface for attention of others") as refused:
        describe_apart(tmp_path)
    assert refused.value.field == "architectures"


def test_a_release_of_the_library_that_the_tests_did_not_run_is_refused():
    assert not_taken(transformers.__version__) is None
    assert not_taken(f"{TAKEN}.9") is None
    for version in ("5.16.2", "5.18.0", "6.0", "5.170.0"):
        assert f"{version} is installed" in str(not_taken(version))


def test_code_that_a_checkpoint_brings_is_not_run(made, tmp_path):
    folder = made("ArceeForCausalLM", MODELS["ArceeForCausalLM"])
    stated = json.loads((folder / "config.json").read_text()) | {"dtype": "float32"}
    stated["auto_map"] = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    (tmp_path / "own.py").write_text("raise SystemExit('it was run')")
    assert isinstance(read_spec(tmp_path, describe=describe), LibrarySpec)
    stated["architectures"] = ["OwnForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(ModelError, match="is no model of transformers"):
        read_spec(tmp_path, describe=describe)


@pytest.mark.parametrize(
    ("architecture", "why"),
    {
        "Qwen3_5ForConditionalGeneration": "reads more than text, and of its modules those of text alone are served",
        "Idefics3ForConditionalGeneration": "reads more than text",
        "WhisperForConditionalGeneration": "reads speech",
        "T5ForConditionalGeneration": "has an encoder beside the decoder",
        "ViTForImageClassification": "is for another task than to generate, classify or embed texts",
        "MusicgenForConditionalGeneration": "is for another task",
        "os": "is no model of transformers",
    }.items(),
)
def test_a_class_that_is_not_served_is_refused_for_what_it_is(architecture, why):
    with pytest.raises(ModelError, match=why):
        find_class(architecture)


@pytest.mark.thorough
def test_no_class_that_generates_is_said_to_be_no_model():
    """Of all of the library's: each is served, or refused for a reason that holds of it."""
    names = [name for name in dir(transformers) if name.endswith("ForConditionalGeneration")]
    assert len(names) > 100
    served = {name for table in SERVED for one in table.values() for name in ((one,) if isinstance(one, str) else one)}
    for name in sorted(set(names) - served):
        with pytest.raises(ModelError) as refused:
            find_class(name)
        assert "is no model of" not in str(refused.value)


@pytest.mark.parametrize(
    ("architecture", "field", "value", "named"),
    [
        ("DeepseekV3ForCausalLM", "num_local_experts", 10**9, "num_local_experts"),
        ("ModernBertDecoderForCausalLM", "num_hidden_layers", 10**9, "num_hidden_layers"),
        ("GPT2LMHeadModel", "n_layer", -1, "n_layer"),
        ("DeepseekV3ForCausalLM", "num_attention_heads", 0, "num_attention_heads"),
        ("ModernBertDecoderForCausalLM", "sliding_window", 1.5, "sliding_window"),
        ("Starcoder2ForCausalLM", "sliding_window", 0, "sliding_window"),
    ],
)
def test_a_wrong_number_is_refused_by_name_before_it_costs_memory(architecture, field, value, named, tmp_path):
    stated = {"architectures": [architecture], **MODELS[architecture], field: value}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(ModelError, match=named) as refused:
        read_spec(tmp_path, describe=describe)
    assert refused.value.field.endswith(named)


def test_dummy_weights_serve_too(made, greedy, prompts):
    model = loaded(made("ArceeForCausalLM", BASE), load_format="dummy").model
    (row,) = greedy(model).generate(prompts[:1], 4)
    assert len(row.tokens) == len(prompts[0]) + 4


SHARED = [
    "ArceeForCausalLM",
    "ApertusForCausalLM",
    "GPTNeoXForCausalLM",
    "GlmForCausalLM",
    "Starcoder2ForCausalLM",
    "GraniteSWAForCausalLM",
    "DeepseekV3ForCausalLM",
    "SolarOpenForCausalLM",
]
"""Layers whose outputs are halves, fused heads, biases behind sums, sinks, attention that every rank has, experts."""


def states(folder, prompts):
    """Last hidden states of an encoder by the library alone."""
    model = transformers.EuroBertModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        return torch.cat([model(torch.tensor([prompt]))[0][0] for prompt in prompts])


def test_two_ranks_give_the_tokens_of_transformers_and_read_their_shares(made, prompts, tmp_path):
    encoder = made("EuroBertModel", BASE)
    folders = [*(made(architecture, MODELS[architecture]) for architecture in SHARED), encoder]
    some = [prompts[4], prompts[10]]
    program = [sys.executable, str(Path(__file__).with_name("library_rank.py"))]
    ranks = [
        forked.Popen(
            [*program, str(rank), str(tmp_path), json.dumps(some), *map(str, folders)],
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            imports=LIBRARY,
        )
        for rank in range(2)
    ]
    results = [json.loads(rank.communicate()[0]) for rank in ranks]
    for number, folder in enumerate(folders):
        stored = (folder / "model.safetensors").stat().st_size
        assert all(result[number]["bytes_read"] < 0.95 * stored for result in results)
        made = [result[number]["made"] for result in results]
        if folder == encoder:
            assert made[0] == made[1]
            np.testing.assert_allclose(made[0], states(folder, some), atol=5e-5)
        else:
            expected = [tokens for tokens, _ in generated(folder, some, 8)]
            assert made == [expected] * 2, folder


def test_what_no_plan_shares_is_refused_on_several_ranks(made):
    spec = read_spec(made("NemotronForCausalLM", BASE), describe=describe)
    assert "no plan by which ranks share it" in str(indivisible(spec, 2)[0])
    shared = read_spec(made("ArceeForCausalLM", BASE), describe=describe)
    assert indivisible(shared, 2) == []
    assert "cannot be divided among 4 ranks" in str(indivisible(shared, 4)[0])
