"""Encoder memory: rows of encoded items, in pages that the scheduler gives out."""

import numpy as np
import torch

from quire.proto.messages.media import MediaFacts
from quire.proto.transport.wire import WireError, unpack
from quire.worker.device.host_memory import zeros
from quire.worker.specs.encoder_pages import PAGE_ROWS
from quire.worker.tables.slot_table import Int64, PlanError


class EncoderMemory:
    """[pages * PAGE_ROWS, width] of the model's dtype; a token's row is its embedding and what deeper layers add."""

    def __init__(self, num_pages: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.num_pages = num_pages
        self.rows = zeros((num_pages * PAGE_ROWS, width), dtype, device)

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes

    def facts(self, kinds: tuple[str, ...], tokens_by: int, *, whole_spans: bool) -> MediaFacts:
        return MediaFacts(kinds, tokens_by, PAGE_ROWS, self.num_pages, whole_spans)

    def row_numbers(self, pages: bytes, num_tokens: int, where: str) -> Int64:
        """Row of each token of an item that lies in these pages, int64 [num_tokens]. `pages` as in `Encode`.

        Raises `PlanError`.
        """
        try:
            firsts, counts = unpack(pages, 2).astype(np.int64).T
        except WireError as error:
            raise PlanError(f"{where}: {error}") from error
        needed, total = -(-num_tokens // PAGE_ROWS), int(counts.sum())
        if total != needed or num_tokens < 1:
            raise PlanError(f"{where}: {total} pages for {num_tokens} tokens, which take {needed}")
        if counts.min() < 1 or firsts.min() < 0 or (firsts + counts).max() > self.num_pages:
            raise PlanError(f"{where}: a run of pages is empty or outside [0, {self.num_pages})")
        runs = zip(firsts * PAGE_ROWS, (firsts + counts) * PAGE_ROWS, strict=True)
        rows: Int64 = np.concatenate([np.arange(begin, end) for begin, end in runs])[:num_tokens]
        return rows
