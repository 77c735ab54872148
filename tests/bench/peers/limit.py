"""What a machine could reach at best with this model, by its read bandwidth and its fastest products alone."""

from dataclasses import dataclass

from peers.bench import quire_bench
from peers.shape import HIDDEN, KV_WIDTH, LAYER_PARAMETERS, NUM_LAYERS, READ_PARAMETERS

WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "int4": 18 / 32}
"""Of one weight; 32 of GGUF's Q4_0 share a scale of two bytes."""
KV_BYTES = {"float32": 4, "bfloat16": 2, "int8": 4, "int4": 4}
"""Of one number in the cache; quire keeps that of a quantized model in its activations' type."""
PRODUCTS = {"float32": "fp32", "bfloat16": "bf16", "int8": "int8", "int4": "int8"}
ATTENTION = {"float32": "fp32", "bfloat16": "bf16", "int8": "fp32", "int4": "fp32"}
"""Names of `quire bench machine`."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes per second that all cores together read, and operations per second of the fastest linear layer by type."""

    read: float
    operations: dict[str, float]

    def step(self, width: str, rows: int, tokens: int, *, shared: int, before: float) -> float:
        """Seconds of `tokens` new tokens for each of `rows` sequences, which all begin with `shared` equal ones.

        `before` are the tokens of its own that each has already, on the average. Linear layers and attention come after
        each other, and of each counts the slower: its bytes over the read bandwidth, or its operations over the fastest
        product. Weights are read once a step, and so are the keys and values of every token, shared ones once for all.
        Nothing else counts: no norms, activations, sampling, no time between steps.
        """
        new = rows * tokens
        weights = READ_PARAMETERS * WEIGHT_BYTES[width]
        products = 2 * (new * LAYER_PARAMETERS + rows * (READ_PARAMETERS - LAYER_PARAMETERS))
        kept = (shared + rows * (before + tokens)) * 2 * NUM_LAYERS * KV_WIDTH * KV_BYTES[width]
        scores = new * (shared + before + tokens / 2) * 4 * NUM_LAYERS * HIDDEN
        return max(weights / self.read, products / self.operations[PRODUCTS[width]]) + max(
            kept / self.read, scores / self.operations[ATTENTION[width]]
        )


def measure_machine() -> Machine:
    measured = quire_bench(["machine", "--seconds", "0.25"])
    fastest = {name: 1e9 * max(measured[f"{name}_linear_gop_s"].values()) for name in ("fp32", "bf16", "int8")}
    return Machine(1e9 * float(measured["read_gb_s"]), fastest)


def mean(one: Machine, other: Machine) -> Machine:
    """What a machine had that was measured twice."""
    operations = {name: (rate + other.operations[name]) / 2 for name, rate in one.operations.items()}
    return Machine((one.read + other.read) / 2, operations)
