"""An engine on a GGUF file whose merged layers are of several types: its tapes, its ranks' shares, its bytes."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from meant import PROMPTS, engine

from quire.deploy.gguf.folder import make_folder
from quire.worker.config import WorkerConfig
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.specs.tape import untaped

MADE = Path(__file__).parents[1] / "weights/ggufs"


@pytest.fixture
def folder(tmp_path):
    """The directory that is made of a file as Q4_K_M mixes types."""
    make_folder(MADE / "llama-q4_k_m.gguf", tmp_path / "made", with_tokenizer=True)
    return tmp_path / "made"


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_products_made_apart_are_taped_and_draw_what_eager_steps_draw(folder, drive, dtype):
    config, spec = WorkerConfig(model=str(folder), dtype=dtype), read_spec(folder)
    plan = read_plan(config, spec)
    assert len({plan.form(f"blocks.0.attention.qkv.{part}") for part in "qkv"}) == 3
    assert untaped(config, spec, "float32", plan) == ""
    drawn = []
    for enforce_eager in (False, True):
        started, driven = engine(folder, drive, dtype=dtype, enforce_eager=enforce_eager)
        driver = driven(started)
        assert (driver.runner._graphs.fitting(1, 1) is None) == enforce_eager
        drawn.append(
            [driver.generate(slot, [token % 200 for token in prompt], 24) for slot, prompt in enumerate(PROMPTS)]
        )
    assert drawn[0] == drawn[1]
    assert len({tuple(tokens) for tokens in drawn[0]}) == len(PROMPTS)


def test_a_file_takes_its_own_bytes_in_memory(folder):
    """A layer's matrices, by the plan: within 2 % of the blocks that the file holds."""
    plan = read_plan(WorkerConfig(model=str(folder)), read_spec(folder))
    shapes = {
        "attention.qkv.q": (64, 256),
        "attention.qkv.v": (32, 256),
        "attention.output": (256, 64),
        "mlp.down": (256, 512),
    }
    stored = {
        "attention.qkv.q": 144 / 256,
        "attention.qkv.v": 210 / 256,
        "attention.output": 22 / 32,
        "mlp.down": 210 / 256,
    }
    for name, (outputs, inputs) in shapes.items():
        form = plan.form(f"blocks.0.{name}")
        assert form.num_bytes(outputs, inputs) <= outputs * inputs * stored[name] * 1.03
    assert "4-bit superblocks of 256 with groups of 32 with minima" in {
        str(form).partition(",")[0] for form in plan.kinds
    }
