"""`quire bench offline`, `latency` and `machine` on a tiny model: keys and arithmetic; never speeds."""

import json
from pathlib import Path

import pytest

from quire.deploy.__main__ import build_parser, main
from quire.deploy.bench.bandwidth import read_bandwidth
from quire.deploy.bench.latency import weight_bytes_per_step
from quire.deploy.bench.offline import kv_waste_share
from quire.deploy.model_path import Model
from quire.proto.messages.introspection import EngineLoad
from quire.proto.messages.requests import ModelFacts
from quire.worker.bench import roofline

COMMON = {"machine", "commit", "seed", "config"}
ENGINE = ("--num-threads", "1", "--kv-cache-memory-bytes", "8MiB", "--max-num-seqs", "4", "--seed", "3")


def load(num_running: int, used_slots_share: float) -> EngineLoad:
    counts = dict.fromkeys(
        (
            "num_waiting",
            "waiting_tokens",
            "num_blocks",
            "free_blocks",
            "cached_blocks",
            "fenced_blocks",
            "prefix_queries",
            "prefix_hits",
            "num_preemptions",
            "num_finished",
            "num_rejected",
        ),
        0,
    )
    return EngineLoad(
        state="ready", epoch=1, step=1, num_running=num_running, used_slots_share=used_slots_share, **counts
    )


def test_throughput_is_a_name_of_offline() -> None:
    benches = [vars(build_parser().parse_args(["bench", name, "-tp", "3"])) for name in ("throughput", "offline")]
    assert {bench.pop("func").args[0] for bench in benches} == {"offline"}
    assert benches[0] == benches[1]


def test_kv_waste_is_averaged_where_most_sequences_run() -> None:
    assert kv_waste_share([load(1, 0.1), load(20, 0.9), load(19, 0.8), load(2, 0.2)]) == pytest.approx(0.15)
    assert kv_waste_share([load(0, 0.0)]) is None
    assert kv_waste_share([]) is None


@pytest.mark.parametrize(
    ("tied", "device", "num_ranks", "expected"),
    [
        (True, "cpu", 1, 1_000_000),
        (False, "cpu", 1, 1_000_000 - 100 * 8 * 2),
        (False, "cpu", 2, 2 * (1_000_000 - 50 * 8 * 2)),
        (False, "NVIDIA H200", 2, 1_000_000 - 50 * 8 * 2),
    ],
)
def test_a_step_reads_all_weights_but_an_untied_input_embedding(
    tmp_path: Path, tied, device, num_ranks, expected
) -> None:
    config = {"vocab_size": 100, "hidden_size": 8, "tie_word_embeddings": tied}
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = ModelFacts(
        max_model_len=1,
        vocab_size=100,
        eos_token_ids=(),
        num_blocks=1,
        block_sizes=(16,),
        kv_bytes=0,
        weight_bytes=1_000_000,
        device=device,
        dtype="bfloat16",
        architecture="",
        revision="",
    )
    assert weight_bytes_per_step(Model(tmp_path, "m"), facts, num_ranks) == expected


def test_offline_prints_the_agreed_keys_and_counts_every_token(engine_bench, tiny_checkpoint) -> None:
    result = engine_bench(
        "offline", str(tiny_checkpoint()), "--num-prompts", "6", "--input-len", "8:20", "--output-len", "10", *ENGINE
    )
    assert set(result) >= COMMON | {
        "output_tokens_per_s",
        "total_tokens_per_s",
        "requests_per_s",
        "peak_memory_bytes",
        "kv_waste_share",
    }
    assert result["seed"] == 3
    assert result["output_tokens_per_s"] == pytest.approx(60 / result["seconds"])
    assert result["peak_memory_bytes"] > 16 << 20
    assert result["config"]["engine"]["max_num_seqs"] == 4


def test_latency_prints_the_agreed_keys(engine_bench, tiny_checkpoint) -> None:
    sizes = ["--batch-size", "3", "--input-len", "12", "--repeats", "2"]
    for output_len in ("6", "60", "600"):  # on a busy machine all of a few tokens come at once, and no step has a time
        result = engine_bench("latency", str(tiny_checkpoint()), *sizes, "--output-len", output_len, *ENGINE)
        if result["decode_ms_per_step_p50"]:
            break
    assert set(result) >= COMMON | {"prefill_ms_p50", "decode_ms_per_step_p50", "share_of_limit"}
    expected = result["weight_bytes_per_step"] / result["read_gb_s"] / 1e6 / result["decode_ms_per_step_p50"]
    assert result["share_of_limit"] == pytest.approx(expected)


def test_a_prompt_too_long_for_the_model_is_reported(engine_bench, tiny_checkpoint) -> None:
    with pytest.raises(AssertionError, match="CONTEXT_LENGTH_EXCEEDED"):
        engine_bench("offline", str(tiny_checkpoint()), "--num-prompts", "1", "--input-len", "999", *ENGINE)


def test_a_model_that_cannot_be_loaded_is_reported(tmp_path: Path, capsys) -> None:
    assert main(["bench", "offline", str(tmp_path / "none"), "--num-prompts", "1"]) == 2
    assert "no such directory" in capsys.readouterr().err


def test_machine_prints_bandwidth_and_both_linears(bench, monkeypatch) -> None:
    monkeypatch.setattr("quire.deploy.bench.machine.read_bandwidth", lambda: 5e9)
    result = bench("machine", "--rows", "1", "2", "--seconds", "0.01", "--cold-bytes", "6MiB")
    assert set(result) >= COMMON | {"read_gb_s", "fp32_linear_gop_s", "int8_linear_gop_s"}
    assert result["read_gb_s"] == pytest.approx(5)
    assert set(result["int8_linear_gop_s"]) == {"M=1", "M=2"}
    assert all(rate > 0 for rate in result["fp32_linear_gop_s"].values())


def test_read_bandwidth_counts_the_bytes_it_reads() -> None:
    assert 1e7 < read_bandwidth(num_bytes=1 << 20, repeats=2) < 1e13


@pytest.mark.parametrize("options", [{"seconds": 0.0}, {"rows": (0,)}])
def test_impossible_machine_options_are_refused(options) -> None:
    with pytest.raises(ValueError, match="must be"):
        roofline.MachineOptions(**options)
