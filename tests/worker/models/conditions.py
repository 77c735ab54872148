"""Conditions under which a model is served, and whether it gives the same tokens under each of them.

As a program it is one rank: python conditions.py RANK RANKS RENDEZVOUS < JSON, which prints what failed, as JSON.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[2]))  # as a program, too

from core_engine import MAX_SEQS, Engine
from parts.clock import GUARD

from quire.worker.device.parallel import Groups, connect

NUM_TOKENS = 12
KILLED_AFTER = {"killed early": 3, "killed late": 10}
"""Steps, of which there are more than `NUM_TOKENS`."""
AMPLE = MAX_SEQS + 1
"""Longest sequences that the pool has blocks for where none is preempted: of more, invariants take longer to check."""
VALUES = {
    "chunk": (1, 3, 5, 128),
    "caching": ("off", "on", "hits"),
    "num_outputs": (1, 3),
    "interruption": ("none", "preempted", *KILLED_AFTER),
}


@dataclass(frozen=True)
class Condition:
    chunk: int
    """Tokens that a step may run."""
    caching: str
    """Of prefixes; "hits": the prompts are the beginnings of one that was served before, not of mixed lengths."""
    num_outputs: int
    """Of each prompt."""
    interruption: str
    """A death, or a pool that holds no more than the longest prompt."""

    @property
    def prompts(self) -> str:
        return "beginnings" if self.caching == "hits" else "mixed"


EVERY = tuple(Condition(*values) for values in product(*VALUES.values()))


def pairwise() -> tuple[Condition, ...]:
    """Few conditions that have every two values of different kinds together: each the one that adds the most pairs."""
    chosen: list[Condition] = []
    left = {pair for one in EVERY for pair in _pairs(one)}
    while left:
        chosen.append(max(EVERY, key=lambda one: len(left & _pairs(one))))
        left -= _pairs(chosen[-1])
    return tuple(chosen)


def _pairs(one: Condition) -> set[tuple[tuple[str, object], ...]]:
    named = [(name, getattr(one, name)) for name in VALUES]
    return {(a, b) for place, a in enumerate(named) for b in named[:place]}


@dataclass(frozen=True)
class Work:
    """Prompts and what follows each of them."""

    longest: list[int]
    """Served before those that share its beginning."""
    prompts: dict[str, list[list[int]]]
    expected: dict[str, list[list[int]]]


class AllReport(Groups):
    """Every rank gets the tokens, so that each one's scheduler may go on."""

    @property
    def reports(self) -> bool:
        return True


def run(work: Work, conditions: Sequence[Condition], folder: str, join: Callable[[], Groups], **fields: object) -> list:
    """What failed: (condition, prompt and output, expected, drawn), or what did not happen."""
    engine = Engine(folder, join=join, kv_cache_memory_bytes=2 << 20, dtype="float32", **fields)
    failed, num_preemptions = [], 0
    for condition in conditions:
        drawn = _drawn(engine, work, condition)
        num_preemptions += engine.core.counters.num_preemptions
        if condition.interruption in KILLED_AFTER and engine.epoch == 1:
            failed.append((str(condition), "nothing was killed"))
        expected = {
            (number, index): tokens
            for number, tokens in enumerate(work.expected[condition.prompts])
            for index in range(condition.num_outputs)
        }
        failed += [
            (str(condition), number, tokens, drawn.get(number))
            for number, tokens in expected.items()
            if drawn.get(number) != tokens
        ]
    sees_all = not engine.facts.windows or 0 in engine.facts.windows  # else blocks come back while outputs run
    tight = any(one.interruption == "preempted" and one.chunk > 5 for one in conditions)
    if sees_all and tight and num_preemptions == 0:
        failed.append(("nothing was preempted",))
    return failed


def _drawn(engine: Engine, work: Work, condition: Condition) -> dict:
    """(prompt's number, output) -> its tokens: the likeliest, drawn as those of a request for several outputs are."""
    longest = engine.facts.blocks_for(len(work.longest) + NUM_TOKENS)
    blocks = longest if condition.interruption == "preempted" else min(AMPLE * longest, engine.facts.num_blocks)
    engine.restart(blocks, max_num_batched_tokens=condition.chunk, enable_prefix_caching=condition.caching != "off")
    if condition.caching == "hits":
        engine.submit(1000, work.longest, max_tokens=NUM_TOKENS)
        engine.settle()
    for number, prompt in enumerate(work.prompts[condition.prompts]):
        engine.submit(number, prompt, condition.num_outputs, temperature=1.0, top_k=1, max_tokens=NUM_TOKENS)
    return engine.settle(KILLED_AFTER.get(condition.interruption, 0))


def main() -> None:
    rank, size, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    asked = json.load(sys.stdin)
    torch.set_num_threads(1)

    def join() -> Groups:
        joined = connect(rank, size, 1, torch.device("cpu"), rendezvous, timeout_seconds=GUARD)
        return AllReport(joined.tensor, joined.pipeline)

    conditions = [Condition(**one) for one in asked["conditions"]]
    start = partial(run, Work(**asked["work"]), conditions, asked["folder"], join, rank=rank)
    json.dump(start(tensor_parallel_size=size, **asked["fields"]), sys.stdout)


if __name__ == "__main__":
    main()
