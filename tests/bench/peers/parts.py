"""What the figures of quire's own server consist of: products, attention, the rest of a step, and between steps."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from peers.limit import Machine
from peers.table import Row
from peers.workload import WORKLOADS

WAVES = {name: workload.requests // workload.at_once for name, workload in WORKLOADS.items()}
CELLS: dict[str, dict[str, float]] = {
    "a": {"decode 1": 1},
    "b": {"prompts 16 x 128": WAVES["b"], "decode 16": WAVES["b"] * (WORKLOADS["b"].output - 1)},
    "c": {
        "prompt 512": 1,
        "prompts 8 x 32": WAVES["c"],
        "decode 8": WAVES["c"] * (WORKLOADS["c"].output - 1),
    },
    "d": {"prompt 1024": 1},
}
"""How often each step of `steps.py` is in the time that a figure stands for."""
PARTS = ("products", "attention", "rotary and KV write", "head", "other calls")


def milliseconds(workload: str, figure: float) -> float:
    """The time that a figure stands for: of a token in (a), of everything in (b) and (c), of the prompt in (d)."""
    one = WORKLOADS[workload]
    if workload == "d":
        return figure
    return 1e3 / figure if workload == "a" else 1e3 * one.requests * one.output / figure


def shares(workload: str, row: Row, steps: dict[str, Any]) -> dict[str, float]:
    """Shares of the time that a server's figure stands for; they add up to 1.

    The limit is that of `table`; products and attention are what their calls take, limit and all. "tables, results":
    what a step takes besides its calls. "between steps": what the client waited and no step ran.
    """
    whole = milliseconds(workload, row["figure"])
    limit = WORKLOADS[workload].limit(Machine(row["read"], row["operations"]), row["width"])
    found = {"limit": milliseconds(workload, limit) / whole}
    in_steps = in_calls = 0.0
    for name, times in CELLS[workload].items():
        in_steps += times * steps[name]["step"]
        for part, one in steps[name]["calls"].items():
            found[part] = found.get(part, 0.0) + times * one / whole
            in_calls += times * one
    return found | {"tables, results": (in_steps - in_calls) / whole, "between steps": 1 - in_steps / whole}


def parts_table(rows: Sequence[Row], steps: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Lines of Markdown: medians over the turns of a width in which both were measured."""
    columns = ("limit", *PARTS, "tables, results", "between steps")
    yield f"| share of its time | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for workload in CELLS:
        for width in dict.fromkeys(one["width"] for one in steps):
            found = list(_turns(workload, width, rows, steps))
            if found:
                medians = (statistics.median(turn.get(column, 0.0) for turn in found) for column in columns)
                yield f"| {workload} {width} | {' | '.join(f'{100 * median:.0f} %' for median in medians)} |"


def _turns(
    workload: str, width: str, rows: Sequence[Row], steps: Sequence[dict[str, Any]]
) -> Iterator[dict[str, float]]:
    for one in steps:
        for row in rows:
            is_ours = row["server"] in ("quire", "quire q4_0") and row["workload"] == workload
            if is_ours and row["width"] == one["width"] == width and row["turn"] == one["turn"]:
                yield shares(workload, row, one["steps"])
