"""Draws one token for each row of a step, running only the stages that some row of it uses.

The order of the stages is fixed: penalties, logit bias, allowed ids, bad words, min_tokens; then greedy rows take the
likeliest token (the lowest id among equals), the others go on with temperature, min_p, top_k, top_p and the draw.
Bans that would leave no token at all are dropped for that token: allowed ids outrank bad words and min_tokens.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from quire.kernels.sample import draw, finite_rows, penalize, scale, truncate
from quire.worker.device import Device
from quire.worker.logprobs import Part, Scored, score
from quire.worker.sampling_table import SPARSE, BadWords, Extras, Float, Int, Uses
from quire.worker.slots import Int64, Rows, Slots

Bools = npt.NDArray[np.bool_]


class Drawn(NamedTuple):
    """Of the S sampling rows, on the device."""

    token_ids: torch.Tensor
    """int64 [S]"""
    finite: torch.Tensor
    """bool [S]: whether the row's logits were"""
    logprobs: Scored | None


class Sampler:
    """Stateless but for the tables it reads; every rank draws the same tokens from the same logits."""

    def __init__(self, slots: Slots, device: Device, reports_logprobs: bool) -> None:
        self._slots = slots
        self._table = slots.sampling
        self._device = device
        self._reports_logprobs = reports_logprobs

    def sample(self, rows: Rows, logits: torch.Tensor) -> Drawn:
        """Draw from logits float32 [S, V], which are overwritten, and store the tokens in the token table."""
        slots = rows.slots[rows.sampling]
        known = rows.known[rows.sampling]
        prompts = self._slots.num_prompt[slots]
        uses = self._table.uses[slots]
        used = int(np.bitwise_or.reduce(uses))
        columns = self._device.upload(np.stack((slots, known, prompts)))
        finite = finite_rows(logits)
        asking = np.flatnonzero(uses & Uses.LOGPROBS) if self._reports_logprobs else np.empty(0, dtype=np.int64)
        raw = logits[self._index(asking)] if asking.size else None
        if used & Uses.PENALTIES:
            self._penalize(logits, np.flatnonzero(uses & Uses.PENALTIES), columns, int(known.max()))
        if used & SPARSE:
            for row in np.flatnonzero(uses & int(SPARSE)).tolist():
                self._restrict(logits[row], int(slots[row]), int(known[row]), int(prompts[row]))
        token_ids = self._choose(logits, (uses & Uses.RANDOM) != 0, uses, columns)
        self._slots.store(columns[0], columns[1], token_ids)
        scored = None if raw is None else self._score(raw, token_ids, asking, rows)
        return Drawn(token_ids, finite, scored)

    def _index(self, rows: Int64) -> torch.Tensor:
        return self._device.upload(rows.astype(np.int64))

    def _penalize(self, logits: torch.Tensor, rows: Int64, columns: torch.Tensor, longest: int) -> None:
        index = self._index(rows)
        slots, known, prompts = columns[:, index]
        floats = self._table.floats[slots]
        logits[index] = penalize(
            logits[index],
            self._slots.tokens[:, :longest].index_select(0, slots),
            known,
            prompts,
            floats[:, Float.REPETITION],
            floats[:, Float.PRESENCE],
            floats[:, Float.FREQUENCY],
        )

    def _restrict(self, logits: torch.Tensor, slot: int, known: int, prompt: int) -> None:
        """Bias and masks of one row [V], in place."""
        extras = self._table.extras[slot]
        if extras.bias is not None:
            logits.index_add_(0, *extras.bias)
        if extras.allowed is not None:
            only = torch.full_like(logits, -torch.inf)
            only[extras.allowed] = logits[extras.allowed]
            logits.copy_(only)
        if extras.bad_words is None and extras.stop_ids is None:
            return
        banned = self._banned(logits, extras, self._slots.tokens[slot, prompt:known], known - prompt)
        nothing_left = (banned == -torch.inf).all()
        logits.copy_(torch.where(nothing_left, logits, banned))

    def _banned(self, logits: torch.Tensor, extras: Extras, output: torch.Tensor, num_output: int) -> torch.Tensor:
        banned = logits.clone()
        if extras.bad_words is not None:
            _ban_words(banned, extras.bad_words, output)
        if extras.stop_ids is not None and num_output < extras.min_tokens:
            banned[extras.stop_ids] = -torch.inf
        return banned

    def _choose(
        self, logits: torch.Tensor, random: Bools, uses: npt.NDArray[np.int32], columns: torch.Tensor
    ) -> torch.Tensor:
        if not random.any():
            return logits.argmax(dim=-1)
        if random.all():
            return self._draw(logits, uses, columns)
        token_ids = logits.argmax(dim=-1)
        rows = np.flatnonzero(random)
        index = self._index(rows)
        token_ids[index] = self._draw(logits[index], uses[rows], columns[:, index])
        return token_ids

    def _draw(self, logits: torch.Tensor, uses: npt.NDArray[np.int32], columns: torch.Tensor) -> torch.Tensor:
        floats = self._table.floats[columns[0]]
        ints = self._table.ints[columns[0]]
        scaled = scale(logits, floats[:, Float.TEMPERATURE])
        cut = np.flatnonzero(uses & Uses.TRUNCATION)
        if cut.size:
            index = self._index(cut)
            f = floats[index]
            scaled[index] = truncate(
                scaled[index], ints[index, Int.TOP_K], f[:, Float.TOP_P].contiguous(), f[:, Float.MIN_P].contiguous()
            )
        return draw(scaled, ints[:, Int.SEED], columns[1], ints[:, Int.OUTPUT_INDEX])

    def _score(self, raw: torch.Tensor, token_ids: torch.Tensor, asking: Int64, rows: Rows) -> Scored:
        plan_rows = rows.sampling[asking]
        extras = [self._table.extras[slot] for slot in rows.slots[plan_rows].tolist()]
        parts = tuple(
            Part(row, False, int(rows.known[row]), 1, e.logprobs, e.named_ids)
            for row, e in zip(plan_rows.tolist(), extras, strict=True)
        )
        width = max(len(part.named_ids) for part in parts)
        named = np.zeros((len(parts), width), dtype=np.int64)
        for line, part in zip(named, parts, strict=True):
            line[: len(part.named_ids)] = part.named_ids
        num_top = max(part.num_top for part in parts)
        return Scored(score(raw, token_ids[self._index(asking)], num_top, self._device.upload(named)), parts)


def _ban_words(logits: torch.Tensor, words: BadWords, output: torch.Tensor) -> None:
    """Forbid, in place, the last token of every word whose other tokens end `output`. One row: [V]."""
    width = words.prefixes.shape[1]
    tail = output[max(0, output.shape[0] - width) :]
    # shorter outputs are padded with what equals no token
    tail = torch.nn.functional.pad(tail, (width - tail.shape[0], 0), value=-2)
    matches = ((words.prefixes == tail) | (words.prefixes == -1)).all(dim=1)
    bans = torch.where(matches, -torch.inf, torch.inf)
    logits.scatter_reduce_(0, words.last, bans, "amin")
