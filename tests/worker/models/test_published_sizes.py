"""Parameters counted from config.json are those that the model cards state."""

from pathlib import Path

import pytest

from quire.worker.config import WorkerConfig
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place

PUBLISHED = Path(__file__).parents[2] / "published"
PARAMETERS = {
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "Mistral-7B-v0.3": 7_248_023_552,
    "Mistral-Nemo-12B": 12_247_782_400,
    "Mistral-Small-24B": 23_572_403_200,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-1.5B": 1_543_714_304,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-14B": 14_770_033_664,
    "Qwen2.5-32B": 32_763_876_352,
    "Qwen2.5-72B": 72_706_203_648,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
    "Phi-3-mini-128k": 3_821_079_552,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-27b": 27_432_406_640,
    "Mixtral-8x7B": 46_702_792_704,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen2-VL-7B": 8_291_375_616,
    "Qwen2.5-VL-7B": 8_292_166_656,
    "Qwen3-VL-8B": 8_767_123_696,
    "SmolVLM2-500M": 507_482_304,
}
"""Tensors of the published weights; a head that is tied to the embedding counts once."""


@pytest.mark.parametrize("model", PARAMETERS)
def test_the_count_is_the_published_one(model: str) -> None:
    needs, refusals = fit(WorkerConfig(model=str(PUBLISHED / model)), Place(True, None))
    assert refusals == []
    assert needs is not None
    assert needs.num_parameters == PARAMETERS[model]
