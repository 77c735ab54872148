"""`cpu_peers.py`: the limits it judges by, and the table of what was measured in turns. No peer is needed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("cpu_peers.py")
LIMITS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from peers.limit import Machine
from peers.workload import WORKLOADS
machine = Machine(float(sys.argv[2]), dict.fromkeys(("fp32", "bf16", "int8"), float(sys.argv[3])))
print(json.dumps({name: one.limit(machine, sys.argv[4]) for name, one in WORKLOADS.items()}))
"""


def limits(read: float, operations: float, width: str) -> dict[str, float]:
    words = [sys.executable, "-c", LIMITS, str(PROGRAM.parent), str(read), str(operations), width]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def test_a_machine_that_computes_at_once_is_held_back_by_what_a_step_reads() -> None:
    found = limits(1e9, 1e30, "float32")
    weights, kv = 100_073_472 * 4, 2 * 12 * 256 * 4
    """12 layers of 768 x 768 twice, 768 x 512 and three of 768 x 2048, and the head; keys and values of one token."""
    assert found["a"] == pytest.approx(1e9 / (weights + 161 * kv))
    assert found["d"] == pytest.approx((weights + 1024 * kv) / 1e9 * 1e3)
    wave = weights + 16 * 128 * kv + 63 * (weights + 16 * 161 * kv)
    assert found["b"] == pytest.approx(64 * 64 / (4 * wave / 1e9))
    shared = weights + 512 * kv + 4 * (weights + (512 + 8 * 32) * kv + 31 * (weights + (512 + 8 * 49) * kv))
    assert found["c"] == pytest.approx(32 * 32 / (shared / 1e9)), "the shared beginning is read once for all"


def test_a_machine_that_reads_at_once_is_held_back_by_its_products() -> None:
    found = limits(1e30, 1e9, "float32")
    layers, head = 75_497_472, 24_576_000
    prompt = 2 * (1024 * layers + head) + 1024 * 512 * 4 * 12 * 768
    assert found["d"] == pytest.approx(prompt / 1e9 * 1e3)
    assert found["a"] == pytest.approx(1e9 / (2 * (layers + head) + 160.5 * 4 * 12 * 768))


def test_weights_of_fewer_bits_are_read_in_less_time() -> None:
    rates = [limits(1e9, 1e30, width)["a"] for width in ("float32", "bfloat16", "int8", "int4")]
    assert rates[1] == pytest.approx(2 * rates[0])
    assert rates[2] > 1.9 * rates[1]
    assert rates[3] > 1.6 * rates[2]


def printed(tmp_path: Path, rows: list[dict[str, Any]]) -> list[str]:
    """What the program says of rows that earlier calls kept."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    words = [sys.executable, str(PROGRAM), "--turns", "0", "--keep", str(tmp_path)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


def row(turn: int, server: str, figure: float, width: str = "float32") -> dict[str, Any]:
    operations = dict.fromkeys(("fp32", "bf16", "int8"), 1e30)
    shared = {"width": width, "workload": "a", "operations": operations, "first_tokens": ["w1", "w2"]}
    return shared | {"turn": turn, "server": server, "figure": figure, "read": 1e9 * turn}


def test_turns_of_earlier_calls_become_medians_and_ratios_of_the_same_turn(tmp_path: Path) -> None:
    shares = [(1, "quire", 0.5), (1, "vLLM", 0.4), (2, "vLLM", 0.2), (2, "quire", 0.3), (3, "quire", 0.6)]
    rows = [row(turn, server, share * limits(1e9 * turn, 1e30, "float32")["a"]) for turn, server, share in shares]
    *lines, last = printed(tmp_path, rows)
    (ours,) = [line.split("|")[-3:-1] for line in lines if "| quire |" in line]
    assert ours == [" 0.5 [0.3\N{EN DASH}0.6] ", "  "], "each of its own turn's limit; nothing stands beside itself"
    assert [line.split("|")[-2].strip() for line in lines if "| vLLM |" in line] == ["1.38 [1.25\N{EN DASH}1.5]"]
    assert "llama-server: not given, left out" in lines
    assert json.loads(last)["rows"] == rows


def test_peers_stand_beside_the_first_of_quires_own_servers(tmp_path: Path) -> None:
    servers = {"quire q8_0": 30.0, "quire": 40.0, "llama-server q8_0": 20.0}
    rows = [row(1, server, figure, "int8") for server, figure in servers.items()]
    rows += [row(1, "llama-server q4_0", 20.0, "int4"), row(1, "quire q4_0", 50.0, "int4")]
    cells = [line.split("|") for line in printed(tmp_path, rows) if line.startswith("| a int")]
    assert [(cell[1].strip(), cell[2].strip(), cell[-2].split()[0:1]) for cell in cells] == [
        ("a int8", "quire", []),
        ("a int8", "quire q8_0", ["1.33"]),
        ("a int8", "llama-server q8_0", ["2"]),
        ("a int4", "quire q4_0", []),
        ("a int4", "llama-server q4_0", ["2.5"]),
    ]


def test_what_a_figure_consists_of_adds_up_to_its_time(tmp_path: Path) -> None:
    """A token takes 20 ms, of which a step has 15 and its calls 12; the limit of 100 MB at 10 GB/s is half of it."""
    bandwidth = 40.03e9
    rows = [row(1, "quire", 50.0) | {"read": bandwidth}, row(2, "quire", 50.0) | {"read": bandwidth}]
    one = {"step": 15.0, "calls": {"products": 10.0, "attention": 2.0}}
    names = ("decode 1", "decode 8", "decode 16", "prompts 16 x 128", "prompts 8 x 32", "prompt 512", "prompt 1024")
    steps = {"turn": 1, "width": "float32", "steps": dict.fromkeys(names, one)}
    (tmp_path / "steps.jsonl").write_text(json.dumps(steps) + "\n")
    table = [line.strip("| ").split(" | ") for line in printed(tmp_path, rows)]
    head = next(line for line in table if line[0] == "share of its time")
    cells = dict(
        zip(head, next(line for line in table if line[0] == "a float32" and len(line) == len(head)), strict=True)
    )
    assert cells == {
        "share of its time": "a float32",
        "limit": "50 %",
        "products": "50 %",
        "attention": "10 %",
        "rotary and KV write": "0 %",
        "head": "0 %",
        "other calls": "0 %",
        "tables, results": "15 %",
        "between steps": "25 %",
    }
