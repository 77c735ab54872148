"""Layers of experts on the path of a GPU: Triton forms in the interpreter, padded buckets, recorded steps run again."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from expert_models import MODELS, seen_experts
from packed_experts import MODELS as PUBLISHED
from packed_experts import pack_matrices
from recording import BLOCK, gpu_runner

from quire.worker.config import WorkerConfig
from quire.worker.specs.quantized import read_plan, refuse_experts
from quire.worker.specs.registry import read_spec

QWEN3 = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "norm_topk_prob": True,
    "intermediate_size": 192,
}
GPT_OSS = [name for name in MODELS if name.startswith("gpt-oss")]
OF_MANY = pytest.param("qwen3 moe: renormalised, a dense layer", marks=pytest.mark.thorough)
EAGER = pytest.param(False, marks=pytest.mark.thorough)
pytestmark = pytest.mark.integration


@pytest.mark.parametrize("captured", [True, EAGER], ids=["captured", "eager"])
@pytest.mark.parametrize("name", ["qwen2 moe: a shared expert", OF_MANY, *GPT_OSS])
def test_recorded_steps_of_experts_draw_what_transformers_draws(name, captured, as_on_a_gpu, drive, tiny_checkpoint):
    """Mixed steps, whose tokens are sorted by expert, then decodes alone, each pair of which reads its own."""
    architecture, config = MODELS[name]
    folder = tiny_checkpoint(architecture, **config)
    check_tokens(drive, gpu_runner(folder, captured), folder)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["awq", "fp8 rows", "fp8 blocks", "mxfp4"])
def test_recorded_steps_of_quantized_experts_draw_what_transformers_draws(
    name, as_on_a_gpu, drive, tiny_checkpoint, tmp_path
):
    """With the weights that are meant: 4-bit integers and 8-bit floats by tools' layouts, and gpt-oss as published."""
    if name != "mxfp4":
        folder = tiny_checkpoint("Qwen3MoeForCausalLM", **QWEN3)
        stored, meant = pack_matrices(folder, tmp_path, name)
    else:
        architecture, config, publish = PUBLISHED["gpt-oss: as published, in MXFP4"]
        stored, meant = publish(tiny_checkpoint(architecture, **config), tmp_path)
    spec = read_spec(stored)
    plan = read_plan(WorkerConfig(model=str(stored), dtype="float32"), spec).on("cuda")
    assert refuse_experts(spec, plan, "cuda", 1) is None
    check_tokens(drive, gpu_runner(stored, captured=True, plan=plan), meant)


def check_tokens(drive, runner, folder):
    """What a runner draws of two prompts is what transformers draws of the checkpoint in `folder`."""
    import transformers

    driver, report = drive(runner, BLOCK), runner.start_counting()
    prompts = [np.random.default_rng(n).integers(1, 320, length).tolist() for n, length in enumerate((5, 13))]
    drawn = [[], []]
    for slot, prompt in enumerate(prompts):
        driver.scribe.admit(slot, prompt)
    with seen_experts(runner._model) as seen:
        for rows in ([(0, 5), (1, 11)], [(0, 1), (1, 2)], *[[(0, 1), (1, 1)]] * 3):
            tokens = iter(driver.draw(rows))
            for slot, count in sorted(rows, key=lambda row: row[1] > 1):
                if count != 11:
                    drawn[slot].append(next(tokens))
    assert counted(report()) == [dict(chosen) for chosen in seen]
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt, tokens in zip(prompts, drawn, strict=True):
        out = reference.generate(
            torch.tensor([prompt]), max_new_tokens=len(tokens), min_new_tokens=len(tokens), do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        assert out[0, len(prompt) :].tolist() == tokens


def counted(report):
    """By layer, the tokens of each expert that was sent any."""
    rows = np.frombuffer(report.counts, np.int64).reshape(len(report.layers), -1).tolist()
    return [{expert: count for expert, count in enumerate(row) if count} for row in rows]
