"""An engine on GGUF files, whose merged layers may be of several types: its tapes, its ranks' shares, its bytes."""

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


SHARES = {
    "llama-q4_k_m": {
        "attention.qkv.q": 144 / 256,
        "attention.qkv.v": 210 / 256,
        "attention.output": 22 / 32,
        "mlp.down": 210 / 256,
    },
    "llama-iq4_xs": {
        "attention.qkv.q": 136 / 256,
        "attention.qkv.v": 176 / 256,
        "attention.output": 18 / 32,
        "mlp.down": 176 / 256,
    },
    "llama-mxfp4": dict.fromkeys(("attention.qkv.q", "attention.qkv.v", "attention.output", "mlp.down"), 17 / 32),
}
"""Files as Q4_K_M and IQ4_XS mix types, and of one -> bytes of a layer's weight."""
QKV = {"llama-q4_k_m": 3, "llama-iq4_xs": 2, "llama-mxfp4": 1}
"""Forms in a merged layer: products of several are made apart."""
KINDS = {
    "llama-q4_k_m": "superblocks of 256 with groups of 32 with minima",
    "llama-iq4_xs": "table groups of 32",
    "llama-mxfp4": "float groups of 32",
}


@pytest.fixture(params=SHARES)
def name(request):
    return request.param


@pytest.fixture
def folder(tmp_path, name):
    """The directory that is made of a file."""
    make_folder(MADE / f"{name}.gguf", tmp_path / "made", with_tokenizer=True)
    return tmp_path / "made"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_products_together_and_apart_are_taped_and_draw_what_eager_steps_draw(folder, name, drive, dtype):
    config, spec = WorkerConfig(model=str(folder), dtype=dtype), read_spec(folder)
    plan = read_plan(config, spec)
    assert len({plan.form(f"blocks.0.attention.qkv.{part}") for part in "qkv"}) == QKV[name]
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


def test_a_file_takes_its_own_bytes_in_memory(folder, name):
    """A layer's matrices, by the plan: within 2 % of the blocks that the file holds."""
    plan = read_plan(WorkerConfig(model=str(folder)), read_spec(folder))
    shapes = {
        "attention.qkv.q": (64, 256),
        "attention.qkv.v": (32, 256),
        "attention.output": (256, 64),
        "mlp.down": (256, 512),
    }
    for layer, (outputs, inputs) in shapes.items():
        form = plan.form(f"blocks.0.{layer}")
        assert form.num_bytes(outputs, inputs) <= outputs * inputs * SHARES[name][layer] * 1.03
    assert f"4-bit {KINDS[name]}" in {str(form).partition(",")[0] for form in plan.kinds}
