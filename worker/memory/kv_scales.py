"""Scales of the keys and values in a cache of 8-bit floats: this rank's heads of what the checkpoint holds."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch

from quire.worker.quant.read.kv_scales import StoredKVScales
from quire.worker.weights.checkpoint import Checkpoint
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.parts import Slice
from quire.worker.weights.source import WeightSource

NOT_GIVEN: Final = -1.0
"""Value of a scale that tools leave in the file without having measured it."""

_log = logging.getLogger(__name__)


class KVScales(NamedTuple):
    """The scales of one layer, float32 [num_kv_heads]: a cached number is its code times the scale."""

    key: torch.Tensor
    value: torch.Tensor


def ones(num_heads: int) -> KVScales:
    """Scales of numbers that are stored as they are."""
    return KVScales(torch.ones(num_heads), torch.ones(num_heads))


def load_kv_scales(folder: Path, stored: Mapping[int, StoredKVScales], heads: Sequence[Slice]) -> list[KVScales]:
    """The scales of each layer, whose key-value heads on this rank are `heads`; 1 where there is none, with a warning.

    Raises CheckpointError for a number that nothing can be divided by.
    """
    given: dict[int, KVScales] = {}
    if stored:
        with Checkpoint(folder) as source:
            read = {layer: _pair(source, names, heads[layer]) for layer, names in stored.items()}
            given = {layer: scales for layer, scales in read.items() if scales is not None}
    if missing := len(heads) - len(given):
        which = "any layer" if not given else f"{missing} of {len(heads)} layers"
        message = (
            "kv_cache_dtype: the checkpoint has no scales for %s: 1 is taken, and numbers beyond 448 are cut; "
            "calculate_kv_scales makes them"
        )
        _log.warning(message, which)
    return [given.get(layer, ones(own.length)) for layer, own in enumerate(heads)]


def _pair(source: WeightSource, names: StoredKVScales, heads: Slice) -> KVScales | None:
    """One layer's; one of keys alone is that of values too, and the other way round. None: neither is given."""
    key, value = _read(source, names.key, heads), _read(source, names.value, heads)
    first = key if key is not None else value
    if first is None:
        return None
    return KVScales(first, first if value is None else value)


def _read(source: WeightSource, name: str | None, heads: Slice) -> torch.Tensor | None:
    """[heads of this rank], float32; None: it is not given."""
    if name is None:
        return None
    scale = source.read(name, (slice(None),) * len(source.shape(name))).float().flatten()
    if (scale == NOT_GIVEN).all():
        return None
    if not (scale.isfinite() & (scale > 0)).all():
        raise CheckpointError(f"{name}: holds a scale that nothing can be computed with; download it again")
    return scale.expand(heads.full)[heads.start : heads.stop].clone()
