"""The digest in which all ranks must agree before a step is run."""

import hashlib
from collections.abc import Sequence

import msgspec

from quire.proto.messages.requests import PROTOCOL_VERSION, ModelFacts
from quire.worker.config import WorkerConfig

_PRIVATE = ("scheduler_address", "run_dir", "model", "num_threads", "flags", "log_level")
"""Fields of the configuration in which ranks could differ and still compute the same."""


def digest(config: WorkerConfig, facts: ModelFacts, kv_scales: Sequence[float] = ()) -> str:
    """Hex digest of protocol version, configuration and facts; the facts name the model's files by their revision.

    `kv_scales`: those that were calculated at the start.
    """
    shared = {name: value for name, value in msgspec.structs.asdict(config).items() if name not in _PRIVATE}
    return hashlib.sha256(msgspec.json.encode((PROTOCOL_VERSION, facts, shared, kv_scales), order="sorted")).hexdigest()
