"""Every case makes arguments that its operation accepts, and its result is torch's; never times."""

import dataclasses

import pytest
import torch

from quire.kernels.bench import attention, quantized
from quire.kernels.bench.__main__ import BenchOptions, cases, measure, run
from quire.kernels.bench.ceilings import Ceilings
from quire.kernels.bench.shapes import CPU, CUDA, Attend, Experts, Layer, Shapes, Tower

TINY = Layer("tiny", 32, 4, 2, 8, 48, 160, True, torch.float32)
SMALL = Shapes(
    layers=(TINY,),
    tokens=(1, 5),
    linear_tokens=(1, 3),
    word_tokens=(),
    block_tokens=(),
    experts=(Experts("tiny", 6, 2, 64, 32, torch.float32),),
    expert_tokens=(1, 5),
    coded_expert_tokens=(1, 5),
    attention=(
        Attend("prefill", ((1, 9, 9),), block_size=4),
        Attend("extend", ((2, 3, 11),), block_size=4),
        Attend("decode", ((1, 1, 30), (2, 1, 6)), block_size=4),
    ),
    towers=(Tower(2, 24, 2, 7, torch.float32),),
    sampling_rows=(2,),
    decode_rows=3,
    cold_bytes=1 << 12,
)
WIDE = Layer("wide", 128, 4, 2, 32, 256, 160, True, torch.float32)
"""Its inputs are whole groups of those that only GPUs measure."""
RATES = Ceilings(1e9, 1e9, 1e9, 1e9)


@pytest.mark.parametrize(
    "case",
    [*cases(SMALL, "cpu"), *quantized.words(WIDE, 3), *quantized.gated(WIDE, 3), *quantized.blocks(WIDE, 3)],
    ids=lambda case: f"{case.operation}, {case.shape}",
)
def test_the_operation_agrees_with_torch_on_its_arguments(case) -> None:
    row = measure(case, BenchOptions(seconds=1e-6), RATES, SMALL.cold_bytes)
    assert row["ms"] > 0
    assert row["vs_torch"] > 0
    assert row["gb_s"] == pytest.approx(case.cost.num_bytes / row["ms"] / 1e6)
    assert row["share_of_read"] == pytest.approx(row["gb_s"])  # at a gigabyte a second


def test_a_case_has_the_same_arguments_whatever_ran_before_it() -> None:
    case = next(case for case in cases(SMALL, "cpu") if case.operation == "linear_groups")
    errors = [measure(case, BenchOptions(seconds=1e-6), RATES, SMALL.cold_bytes)["error"] for _ in range(2)]
    assert errors[0] == errors[1] > 0


def test_an_operation_that_differs_from_torch_is_no_result() -> None:
    case = next(case for case in cases(SMALL, "cpu") if case.operation == "rms_norm")

    def wrong(device):
        pair = case.make(device)
        return pair._replace(ours=lambda: 1.1 * pair.ours())

    with pytest.raises(RuntimeError, match="rms_norm, 1 x 32: differs from torch by 0"):
        measure(dataclasses.replace(case, make=wrong), BenchOptions(), RATES, SMALL.cold_bytes)


def test_a_result_that_is_not_written_is_no_result() -> None:
    case = next(case for case in cases(SMALL, "cpu") if case.operation == "rms_norm")

    def forgetful(device):
        pair = case.make(device)
        return pair._replace(ours=lambda: torch.empty(1, 32))

    with pytest.raises(RuntimeError, match="differs from torch by nan"):
        measure(dataclasses.replace(case, make=forgetful), BenchOptions(), RATES, SMALL.cold_bytes)


def test_shapes_of_the_gpu_cover_both_models_and_all_that_is_asked_of_attention() -> None:
    found = {(case.operation, case.shape) for case in cases(CUDA, "cuda")}
    assert {operation for operation, _ in found} >= {
        "rms_norm",
        "add_rms_norm",
        "rope_store_kv",
        "gated_activation",
        "embed_shard",
        "linear",
        "norm_linear",
        "linear_group_words",
        "paged_attention",
        "rope_in_place",
        "encoder_attention",
        "route",
        "experts",
        "coded_experts",
        "best",
        "sample",
        "append_tokens",
        "top_k_top_p",
        "score",
        "penalize",
        "mask_tokens",
        "prepare_inputs",
        "fill_tile_schedule",
        "copy_blocks",
    }
    assert ("norm_linear", "16 x 4096 -> 28672, gate and up") in found
    assert ("norm_linear", "16 x 4096 -> 24576, gate and up") in found
    assert ("encoder_attention", "1 x 3772 patches, 16 heads of 72") in found
    assert ("paged_attention", "decode 1 x 128k + 31 x 4k, 32/8 heads of 128") in found


def test_the_floor_of_a_decode_step_of_64_rows_of_4096_tokens_is_a_gibibyte() -> None:
    bound = attention.case(CUDA.layers[0], Attend("", ((64, 1, 4096),))).cost
    assert bound.num_bytes == pytest.approx(1 << 30, rel=1e-3)


def test_an_unknown_operation_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown nonsense; known: add_rms_norm"):
        run(BenchOptions(ops=("nonsense",)))


def test_a_case_that_fails_is_named_and_the_others_are_measured(monkeypatch) -> None:
    def check(case, options, ceilings, cold_bytes):
        if case.shape == "16 x 768":
            raise ValueError("broken")
        return {"shape": case.shape}

    monkeypatch.setattr("quire.kernels.bench.__main__.measure", check)
    result = run(BenchOptions(ops=("rms_norm",), seconds=1e-6))
    assert [row["shape"] for row in result["rows"]] == ["1 x 768", "1024 x 768"]
    assert result["failed"] == ["rms_norm, 16 x 768: ValueError: broken"]


def test_what_the_time_limit_leaves_out_is_named() -> None:
    result = run(BenchOptions(ops=("rms_norm",), seconds=1e-6, time_limit=1e-9))
    assert result["rows"] == []
    assert result["not_measured"] == [f"rms_norm, {tokens} x 768" for tokens in CPU.tokens]
