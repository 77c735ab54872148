"""Projections that are fused or permuted in the checkpoint are quantized on the fly like others."""

import pytest
import torch

from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import SingleGroup
from quire.worker.models.build import load_model
from quire.worker.quant.int8 import Int8Scheme
from quire.worker.quant.select import schemes_of
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec

CPU = torch.device("cpu")


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Phi3ForCausalLM", "Glm4ForCausalLM"])
def test_logits_are_close_to_those_of_the_weights(architecture, tiny_checkpoint, load, greedy, prompts):
    folder = tiny_checkpoint(architecture, head_dim=16, hidden_size=128, intermediate_size=256, num_hidden_layers=2)
    spec = read_spec(folder)
    plan = read_plan(WorkerConfig(model=str(folder), quantization="int8", dtype="float32"), spec).on("cpu")
    context = BuildContext(SingleGroup(), CPU, torch.float32, schemes_of(plan, CPU))
    quantized = load_model(folder, spec, context, plan=plan).model
    assert isinstance(quantized.blocks[1].attention.qkv.scheme, Int8Scheme)
    (exact,), (rounded,) = (greedy(model).generate([prompts[-1]], 1) for model in (load(folder), quantized))
    assert torch.corrcoef(torch.stack((exact.logits[0], rounded.logits[0])))[0, 1] > 0.97
