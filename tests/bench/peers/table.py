"""What was measured in several turns, as one table: medians [least–most], and quire beside each peer of a turn."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from peers.limit import Machine
from peers.workload import WORKLOADS

Row = dict[str, Any]
"""One figure: turn, width, server, workload, figure, and how fast the machine was found before and after its server."""


def spread(values: Sequence[float]) -> str:
    """`median [least–most]` in three digits."""
    return f"{_short(statistics.median(values))} [{_short(min(values))}\N{EN DASH}{_short(max(values))}]"


def table(rows: Sequence[Row]) -> Iterable[str]:
    """Lines of Markdown. (d) is in milliseconds, everything else in tokens per second.

    A figure's limit is that of the machine as it was found around its server, and `quire over it` a ratio of figures of
    one turn, for (d) of times.
    """
    yield "| workload | server | measured | limit | share of the limit | quire over it |"
    yield "|---|---|---|---|---|---|"
    for workload, width in dict.fromkeys((row["workload"], row["width"]) for row in sorted(rows, key=_order)):
        cell = [row for row in rows if (row["workload"], row["width"]) == (workload, width)]
        first = min((row["server"] for row in cell if row["server"].startswith("quire")), default="")
        ours = {row["turn"]: row["figure"] for row in cell if row["server"] == first}
        for server in dict.fromkeys(row["server"] for row in sorted(cell, key=lambda row: row["server"] != first)):
            its = [row for row in cell if row["server"] == server]
            beside = [ours[row["turn"]] / row["figure"] for row in its if row["turn"] in ours]
            figures = [row["figure"] for row in its]
            limits = [WORKLOADS[workload].limit(Machine(row["read"], row["operations"]), width) for row in its]
            shares = [WORKLOADS[workload].share(*pair) for pair in zip(figures, limits, strict=True)]
            ratio = spread(beside) if beside and server != first else ""
            cells = f"{workload} {width}", server, spread(figures), spread(limits), spread(shares), ratio
            yield f"| {' | '.join(cells)} |"


def _order(row: Row) -> tuple[str, int]:
    return row["workload"], ("float32", "bfloat16", "int8", "int4").index(row["width"])


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
