"""check.py and bench.py against a chip that is not here: every line of theirs that only a GPU reaches is run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

GPU = Path(__file__).parents[1] / "gpu"
KINDS = ("check", "bench")
PARTS = {
    "check": ("tiny", "layers", "linears", "decode", "prefill", "sampling", "encoder", "forms", "vision",
              "families", "experts", "heads", "runner", "transformers", "group", "engine", "specialized"),
    "bench": ("ceilings", "tower", "latencies", "throughput", "transformers", "kernels",
              "experts", "experts_mxfp4", "cameras", "cameras_fp8"),
}  # fmt: skip
PLANNED = [(kind, part) for kind in KINDS for part in ("facts", *PARTS[kind])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("scripts")


@pytest.fixture(scope="module")
def said(folder: Path, compiled: Path) -> dict[str, str]:
    """What each script printed; both run side by side, their parts one behind the other."""
    variables = {**os.environ, "OUT": str(folder), "OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(compiled)}
    running = {
        kind: subprocess.Popen(
            [sys.executable, str(GPU / f"{kind}.py"), "--device", "stand-in"],
            env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for kind in KINDS
    }  # fmt: skip
    return {kind: process.communicate()[0] for kind, process in running.items()}


@pytest.fixture(scope="module")
def documents(folder: Path, said: dict[str, str]) -> dict[str, dict]:
    return {kind: json.loads((folder / f"{kind}-stand-in.json").read_text()) for kind in KINDS}


@pytest.fixture(scope="module")
def lines(folder: Path, said: dict[str, str]) -> list[tuple[str, dict]]:
    texts = {kind: (folder / f"{kind}-stand-in.jsonl").read_text().splitlines() for kind in KINDS}
    return [(kind, json.loads(text)) for kind in KINDS for text in texts[kind]]


@pytest.mark.parametrize(("kind", "part"), PLANNED)
def test_every_case_of_a_part_ends_without_raising(lines, kind: str, part: str) -> None:
    found = [line for which, line in lines if (which, line["part"]) == (kind, part)]
    assert found
    assert [(line["case"], line.get("trace")) for line in found if not line["passed"]] == []


def test_no_part_is_left_out(documents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GPU))
    import bench
    import check

    for script in (check.SCRIPT, bench.SCRIPT):
        assert sorted(script.parts) == sorted(PARTS[script.kind])
        assert set(documents[script.kind]["seconds"]) == {"facts", *script.parts}


def test_what_only_a_gpu_runs_was_run(lines) -> None:
    names = {(kind, line["part"], line["case"]) for kind, line in lines}
    wanted = {
        ("check", "engine", "qwen3-8b, graphs"),
        ("check", "runner", "grammars ahead of results, bfloat16"),
        ("check", "runner", "launch never waits, bfloat16: grammar, allowed_token_ids, penalties"),
        ("check", "forms", "fp8 at load: near the references"),
        ("check", "experts", "experts of mixtral, bfloat16: graphs equal eager steps"),
        ("check", "heads", "backend, Llama, bfloat16: start, graphs"),
        ("check", "linears", "linear torch.bfloat16 17 x 4096 -> 28672"),
        ("bench", "kernels", "compile side by side"),
        ("bench", "latencies", "step_ms_128_at_256"),
        ("bench", "throughput", "throughput_1000/1000"),
    }
    assert wanted - names == set()
    assert sum(part == "specialized" for _, part, _ in names) > 5


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_claimed(documents, said, kind: str) -> None:
    document = documents[kind]
    assert document["device"] == "a stand-in for NVIDIA H200, which computes nothing"
    assert document["failures"] == []
    assert (document["passed"], document["compared"]) == (False, False)
    assert document["entries"]
    assert not any(entry["compared"] or entry["passed"] for entry in document["entries"])
    assert said[kind].splitlines()[-1].startswith("RAN to its end on a stand-in: nothing was computed")
    assert "PASSED" not in said[kind]


def test_no_ratio_is_met(documents) -> None:
    ratios = documents["bench"]["ratios"]
    assert {"itl_ms_short", "ttft_ms_2048", "step_ms_32_at_256", "1000/1000", "against transformers"} <= {
        name.removeprefix("throughput_") for name in ratios
    }
    assert not any("met" in row for row in ratios.values())
