"""A tied output head that a checkpoint holds nevertheless: it must be the embedding, or nobody knows what is meant."""

import re
from collections.abc import Iterator
from typing import Final

import torch

from quire.worker.weights.header import CheckpointError
from quire.worker.weights.load import CONVERTIBLE
from quire.worker.weights.names import EMBEDDING, TENSOR, NameMap
from quire.worker.weights.source import WeightSource

ROWS: Final = 8192
"""Rows that are compared at once."""
TABLE: Final = EMBEDDING.replace(TENSOR, "weight")
RTOL, ATOL = 2**-7, 1e-6
"""Most by which numbers differ that were rounded to another dtype of two bytes."""


def check_tied_head(source: WeightSource, names: NameMap, rank: int, size: int) -> None:
    """Compare a head that the model does without with the embedding, each of `size` ranks its share of the rows.

    The library takes such a head for its own where it differs, others leave it out. Raises CheckpointError. Packed
    ones are left out: their numbers are never quite the embedding's.
    """
    heads = [name for name in source.names() if any(re.fullmatch(pattern, name) for pattern in names.tied)]
    for head in heads:
        for table in _tables(source, names):
            if {source.dtype(head), source.dtype(table)} <= CONVERTIBLE and not _equal(source, head, table, rank, size):
                raise CheckpointError(
                    f"{head}: differs from {table}, though by config.json tie_word_embeddings is true; set it to "
                    "false to use this head (hf_overrides does), or take the tensor out of the checkpoint"
                )


def _tables(source: WeightSource, names: NameMap) -> Iterator[str]:
    for name in source.names():
        if not names.ignores(name) and (targets := names.targets(name)) is not None and TABLE in targets.paths:
            yield name


def _equal(source: WeightSource, head: str, table: str, rank: int, size: int) -> bool:
    if source.shape(head) != source.shape(table):
        return False
    share, alike = -(-source.shape(table)[0] // size), source.dtype(head) == source.dtype(table)
    for start in range(rank * share, min((rank + 1) * share, source.shape(table)[0]), ROWS):
        rows = (slice(start, min(start + ROWS, (rank + 1) * share)), slice(None))
        one, other = source.read(head, rows), source.read(table, rows)
        if not (torch.equal(one, other) if alike else torch.allclose(one.float(), other.float(), RTOL, ATOL)):
            return False
    return True
