"""Models of GGUF files, token for token against transformers on the same weights (float32, greedy)."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[2]))  # collected in importlib mode, yet they share modules

from gguf_meant import meant

from quire.deploy.gguf.folder import make_folder
from quire.deploy.model_path import resolve
from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import SingleGroup
from quire.worker.models.build import load_model
from quire.worker.quant.select import schemes_of
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.weights.gguf.checkpoint import GgufCheckpoint
from quire.worker.weights.header import CheckpointError

pytestmark = pytest.mark.integration

MADE = Path(__file__).parents[1] / "weights/ggufs"
EXPECTED = json.loads((MADE / "expected.json").read_text())["models"]
CPU = torch.device("cpu")
ON_GPUS = ("llama-q8_0", "llama-q4_0", "llama-q4_1")
"""Those whose weights have products on GPUs, which run on CPUs too, slowly."""


@pytest.mark.parametrize(
    ("name", "served_on"), [*((name, "cpu") for name in EXPECTED), *((name, "cuda") for name in ON_GPUS)]
)
def test_tokens_are_those_of_transformers(name, served_on, tmp_path, greedy, reference, prompts):
    """The original's config, and the weights that `test_gguf_checkpoint` proves to be those of the file."""
    made, config = tmp_path / "made", EXPECTED[name]["config"]
    make_folder(next(MADE.glob(f"{name}*.gguf")), made, with_tokenizer=True)
    original = written(tmp_path, config, interleaved(weights_of(made, EXPECTED[name]["digests"])))
    decoder = loaded(made, served_on)
    prompts = [[token % config["vocab_size"] for token in prompt] for prompt in prompts]
    rows = greedy(decoder).generate(prompts, 48)
    expected = reference(original, prompts, 48)
    assert len({tuple(tokens[-48:]) for tokens, _ in expected}) > len(prompts) // 2
    for row, (tokens, logprobs) in zip(rows, expected, strict=True):
        assert row.tokens == tokens
        assert row.logprobs == pytest.approx(logprobs, abs=1e-4)


def test_fields_of_hf_overrides_take_the_place_of_what_the_file_says(tmp_path, greedy, reference, prompts):
    name, changes = "llama3-f32", {"rope_theta": 50.0, "max_position_embeddings": 128}
    file = MADE / f"{name}.gguf"
    plain = greedy(loaded(resolve(str(file), "auto", tmp_path).directory)).generate(prompts[:4], 24)
    made = resolve(str(file), "auto", tmp_path, overrides=json.dumps(changes)).directory
    assert read_spec(made).max_model_len == 128
    original = written(tmp_path, EXPECTED[name]["config"] | changes, weights_of(made, EXPECTED[name]["digests"]))
    rows = greedy(loaded(made)).generate(prompts[:4], 24)
    assert [row.tokens for row in rows] != [row.tokens for row in plain]
    assert [row.tokens for row in rows] == [tokens for tokens, _ in reference(original, prompts[:4], 24)]


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"num_hidden_layers": 1}, r"model.layers.1.* the model has no place for it"),
        ({"num_hidden_layers": 3}, r"lacks the tensors for blocks.2"),
        ({"intermediate_size": 32}, r"gate_proj.codes: has shape \[64, 32\], the config describes \[32, 32\]"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "lacks the tensors for classifier"),
    ],
    ids=str,
)
def test_fields_that_the_tensors_of_the_file_do_not_fit_are_refused(changes, refusal, tmp_path):
    made = resolve(str(MADE / "llama-q8_0.gguf"), "auto", tmp_path, overrides=json.dumps(changes)).directory
    with pytest.raises(CheckpointError, match=refusal):
        loaded(made)


def loaded(folder, served_on="cpu"):
    spec = read_spec(folder)
    plan = read_plan(WorkerConfig(model=str(folder), dtype="float32"), spec)
    context = BuildContext(SingleGroup(), CPU, torch.float32, schemes_of(plan, torch.device(served_on)))
    return load_model(folder, spec, context, plan=plan).model


def written(folder, config, weights):
    """A checkpoint as transformers reads it."""
    made = folder / "original"
    made.mkdir()
    (made / "config.json").write_text(json.dumps({"pad_token_id": None} | config))
    save_file(weights, made / "model.safetensors")
    return made


def interleaved(weights):
    """With the experts of gpt-oss as its checkpoints have them: gate and up in turns, inputs first."""
    merged = {name: value for name, value in weights.items() if ".experts." not in name}
    for name, value in weights.items():
        block, _, part = name.partition(".experts.")
        if part.startswith("gate"):
            up = weights[name.replace("gate_proj", "up_proj")]
            part, value = part.replace("gate", "gate_up"), torch.stack((value, up), 2).flatten(1, 2)
        if part and not part.startswith("up"):
            stored = value.transpose(1, 2).contiguous() if part.endswith("weight") else value
            merged[f"{block}.experts.{part.replace('.bias', '_bias').removesuffix('.weight')}"] = stored
    return merged


def weights_of(folder, names):
    """The weights as they are meant, in float32."""
    with GgufCheckpoint(folder) as checkpoint:
        return {name: meant(checkpoint, name).contiguous() for name in names}
