"""The four workloads: what each asks of a server, its figure, and the limit of that figure."""

from dataclasses import dataclass
from typing import Any

from peers.bench import quire_bench
from peers.limit import Machine
from peers.shape import VOCAB_SIZE


@dataclass(frozen=True, slots=True)
class Workload:
    """So many requests, `at_once` at a time: a shared beginning, tokens of their own, an output of exact length."""

    name: str
    requests: int
    at_once: int
    shared: int
    own: int
    output: int

    def load(self, target: str, seed: int) -> dict[str, Any]:
        """What `quire bench serve` measures of the server at HOST:PORT.

        Raises `RuntimeError` unless everything was asked and answered in full, as the server counts it.
        """
        options = {
            "--target": target,
            "--num-prompts": self.requests,
            "--concurrency": self.at_once,
            "--shared-prefix": self.shared,
            "--input-len": self.own,
            "--output-len": self.output,
            "--vocab-size": VOCAB_SIZE,
            "--seed": seed,
        }
        measured = quire_bench(["serve", "--http", *(str(word) for pair in options.items() for word in pair)])
        wanted = {
            "errors": {},
            "input_tokens": self.requests * (self.shared + self.own),
            "output_tokens": self.requests * self.output,
        }
        found = {key: measured[key] for key in wanted}
        if found != wanted:
            raise RuntimeError(f"workload {self.name}: {found} instead of {wanted}")
        return measured

    def figure(self, measured: dict[str, Any]) -> float:
        """Tokens per second: (a) of decoding alone, (b) and (c) of the whole; (d) milliseconds to the first token."""
        if self.name == "a":
            return 1e3 / float(measured["tpot_ms_p50"])
        return float(measured["ttft_ms_p50" if self.name == "d" else "output_tokens_per_s"])

    def share(self, figure: float, limit: float) -> float:
        """Of the limit that was reached; 1 is all of it."""
        return limit / figure if self.name == "d" else figure / limit

    def limit(self, machine: Machine, width: str) -> float:
        """The same figure where only the machine's limits count; requests come in waves of `at_once`."""
        decode = machine.step(width, self.at_once, 1, shared=self.shared, before=self.own + self.output / 2)
        prompts = machine.step(width, self.at_once, self.own, shared=self.shared, before=0)
        if self.name == "a":
            return 1 / decode
        if self.name == "d":
            return 1e3 * prompts
        prefix = machine.step(width, 1, self.shared, shared=0, before=0) if self.shared else 0.0
        waves = self.requests / self.at_once
        return self.requests * self.output / (prefix + waves * (prompts + (self.output - 1) * decode))


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("a", 5, 1, 0, 128, 64),
        Workload("b", 64, 16, 0, 128, 64),
        Workload("c", 32, 8, 512, 32, 32),
        Workload("d", 5, 1, 0, 1024, 1),
    )
}
WARM_UP = (Workload("b", 32, 16, 0, 128, 16), Workload("d", 2, 1, 0, 1024, 2))
