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
from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import SingleGroup
from quire.worker.models.build import load_model
from quire.worker.quant.select import schemes_of
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.weights.gguf.checkpoint import GgufCheckpoint

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
    made, original = tmp_path / "made", tmp_path / "original"
    make_folder(next(MADE.glob(f"{name}*.gguf")), made, with_tokenizer=True)
    original.mkdir()
    config = EXPECTED[name]["config"]
    (original / "config.json").write_text(json.dumps(config))
    save_file(weights_of(made, EXPECTED[name]["digests"]), original / "model.safetensors")
    spec = read_spec(made)
    plan = read_plan(WorkerConfig(model=str(made), dtype="float32"), spec)
    context = BuildContext(SingleGroup(), CPU, torch.float32, schemes_of(plan, torch.device(served_on)))
    decoder = load_model(made, spec, context, plan=plan).model
    prompts = [[token % config["vocab_size"] for token in prompt] for prompt in prompts]
    rows = greedy(decoder).generate(prompts, 48)
    expected = reference(original, prompts, 48)
    assert len({tuple(tokens[-48:]) for tokens, _ in expected}) > len(prompts) // 2
    for row, (tokens, logprobs) in zip(rows, expected, strict=True):
        assert row.tokens == tokens
        assert row.logprobs == pytest.approx(logprobs, abs=1e-4)


def weights_of(folder, names):
    """The weights as they are meant, in float32."""
    with GgufCheckpoint(folder) as checkpoint:
        return {name: meant(checkpoint, name).contiguous() for name in names}
