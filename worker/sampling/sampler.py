"""Draws one token for each row of a step, running only the stages that some row of it uses.

The order of the stages is fixed: penalties, logit bias, allowed ids, grammar, bad words, min_tokens; then greedy rows
take the likeliest token (the lowest id among equals), the others go on with temperature, min_p, top_k, top_p and the
draw. Bans that would leave no token at all are dropped for that token: allowed ids and grammars outrank bad words and
min_tokens.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from quire.kernels.sampling.penalize import mask_tokens, penalize
from quire.kernels.sampling.sample import choose
from quire.kernels.sampling.score import finite_rows
from quire.kernels.sampling.top_k_top_p import cut
from quire.worker.device.device import Mark
from quire.worker.sampling.grammar_masks import Masks, Matchers
from quire.worker.sampling.logprobs import Part, Scored, score
from quire.worker.tables.sampling_table import SPARSE, BadWords, Extras, Float, Int, Uses
from quire.worker.tables.slot_table import Int64, Rows, Slots
from quire.worker.tables.upload import Staging

_NONE = np.empty(0, dtype=np.int64)


class Head(Protocol):
    """What the sampler asks of a model."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden] -> [S, vocab] in any float, complete and equal on every rank."""
        ...

    def best(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Likeliest ids int64 [S], and whether each row's logits are finite, bool [S]; equal on every rank."""
        ...


class Drawn(NamedTuple):
    """Of the S sampling rows, on the device."""

    token_ids: torch.Tensor
    """int64 [S]"""
    finite: torch.Tensor
    """bool [S]: whether the row's logits were"""
    logprobs: Scored | None


@dataclass(frozen=True, slots=True)
class Guided:
    """G rows that have a grammar."""

    rows: torch.Tensor
    """int64 [G]: rows of the draw, on the device"""
    indices: tuple[int, ...]
    """the same on the host, and their slots"""
    slots: tuple[int, ...]
    masks: "Future[Masks]"
    """made meanwhile"""


@dataclass(frozen=True, slots=True)
class Draw:
    """What one step draws, decided on the host; the tensors are parts of the step's upload. S rows."""

    slots: torch.Tensor
    """int64 [S]"""
    positions: torch.Tensor
    """int64 [S], of the drawn token in its sequence: the tokens known before it"""
    logits_rows: torch.Tensor
    """int64 [S]: indices into the step's tokens"""
    used: int
    """The stages some row uses."""
    penalized: tuple[torch.Tensor, ...]
    """int64 [P] each: rows of the draw, slots, known tokens, prompt tokens; empty without penalties"""
    longest: int
    """Known tokens of the longest row."""
    restricted: tuple[tuple[int, int, int, int], ...]
    """(row of the draw, slot, known tokens, prompt tokens) of rows with a bias or forbidden tokens"""
    masked: tuple[torch.Tensor, tuple[int, ...]] | None
    """rows of the draw, int64 [A], and their slots, that have allowed ids"""
    guided: Guided | None
    asking: torch.Tensor | None
    """int64 [Q]: rows of the draw whose logprobs are asked for"""
    named: torch.Tensor | None
    """int64 [Q, m]"""
    parts: tuple[Part, ...]
    num_top: int


class Sampler:
    """Stateless but for the tables it reads; every rank draws the same tokens from the same logits."""

    def __init__(self, slots: Slots, reports_logprobs: bool, matchers: Matchers | None = None) -> None:
        """`matchers`: needed for rows that have a grammar."""
        self._slots = slots
        self._matchers = matchers
        self._table = slots.sampling
        self._reports_logprobs = reports_logprobs

    def stage(self, rows: Rows, staging: Staging) -> Draw:
        """Decide what the step draws, and put it into its upload. On the host alone."""
        slots = rows.slots[rows.sampling]
        known = rows.known[rows.sampling]
        prompts = self._slots.num_prompt[slots]
        uses = self._table.uses[slots]
        used = int(np.bitwise_or.reduce(uses))

        def using(stages: int) -> Int64:
            return np.flatnonzero(uses & stages) if used & int(stages) else _NONE

        def columns_of(chosen: Int64) -> Int64:
            """[4, n]: rows of the draw, slots, known tokens, prompt tokens."""
            return np.stack((chosen, slots[chosen], known[chosen], prompts[chosen]))

        ends = np.cumsum(rows.counts)[rows.sampling]
        columns = staging.put(np.stack((slots, known, ends - 1)))
        penalized = using(Uses.PENALTIES)
        restricted = using(int(SPARSE & ~Uses.ALLOWED & ~Uses.GRAMMAR))
        masked = using(Uses.ALLOWED)
        asking = using(Uses.LOGPROBS) if self._reports_logprobs else _NONE
        parts, named = self._asked(rows, asking) if asking.size else ((), None)
        return Draw(
            slots=columns[0],
            positions=columns[1],
            logits_rows=columns[2],
            used=used,
            penalized=tuple(staging.put(columns_of(penalized))) if penalized.size else (),
            longest=int(known.max()),
            restricted=tuple(map(tuple, columns_of(restricted).T.tolist())) if restricted.size else (),
            masked=(staging.put(masked), tuple(slots[masked].tolist())) if masked.size else None,
            guided=self._guided(using(Uses.GRAMMAR), slots, staging) if used & Uses.GRAMMAR else None,
            asking=staging.put(asking) if asking.size else None,
            named=None if named is None else staging.put(named),
            parts=parts,
            num_top=max((part.num_top for part in parts), default=0),
        )

    def _guided(self, guided: Int64, slots: Int64, staging: Staging) -> Guided:
        """Their masks are begun here, so that they are made while the device runs the layers."""
        assert self._matchers is not None
        its_slots = tuple(slots[guided].tolist())
        return Guided(staging.put(guided), tuple(guided.tolist()), its_slots, self._matchers.masks(its_slots))

    def run(self, draw: Draw, hidden: torch.Tensor, head: Head, stored: Callable[[], None]) -> Drawn:
        """Draw from the model's head over `hidden` [S, hidden], and put the tokens into the token table.

        `stored` is called once that is queued: the next step needs no more than that.
        """
        if not draw.used:
            token_ids, finite = head.best(hidden)
            raw = None
        else:
            logits = head.logits(hidden)
            finite = finite_rows(logits)
            raw = None if draw.asking is None else logits.index_select(0, draw.asking)
            token_ids = self._choose(self._edited(logits, draw), draw)
        self._slots.store(draw.slots, draw.positions, token_ids)
        # the next step's upload may lie over this one's once `stored` is called
        asked = None if draw.asking is None else token_ids.index_select(0, draw.asking)
        named = None if draw.named is None else draw.named.clone()
        stored()
        if raw is None or asked is None or named is None:
            return Drawn(token_ids, finite, None)
        return Drawn(token_ids, finite, Scored(score(raw, asked, draw.num_top, named), draw.parts))

    def drew(self, draw: Draw, token_ids: torch.Tensor, mark: Mark) -> tuple[int, ...]:
        """Tell the grammars where on the host the tokens will be; the rows of the draw whose grammar was stuck."""
        if draw.guided is None or self._matchers is None:
            return ()
        self._matchers.drew(draw.guided.slots, draw.guided.indices, token_ids, mark)
        return tuple(draw.guided.indices[row] for row in draw.guided.masks.result().stuck)

    def _edited(self, logits: torch.Tensor, draw: Draw) -> torch.Tensor:
        """After penalties, biases and bans."""
        if not draw.used & (Uses.PENALTIES | SPARSE):
            return logits
        logits = logits.float()
        if draw.penalized:
            rows, slots, known, prompts = draw.penalized
            floats = self._table.floats.index_select(0, slots)
            factors = (floats[:, column].contiguous() for column in (Float.REPETITION, Float.PRESENCE, Float.FREQUENCY))
            penalize(logits, rows, self._slots.tokens[:, : draw.longest], slots, known, prompts, *factors)
        for row, slot, _, _ in draw.restricted:
            bias = self._table.extras[slot].bias
            if bias is not None:
                logits[row].index_add_(0, *bias)
        if draw.masked is not None:
            masks = [self._table.extras[slot].allowed for slot in draw.masked[1]]
            mask_tokens(logits, draw.masked[0], torch.stack([mask for mask in masks if mask is not None]))
        if draw.guided is not None and self._matchers is not None:
            mask_tokens(logits, draw.guided.rows, self._matchers.upload(draw.guided.masks.result()))
        for row, slot, known_tokens, prompt in draw.restricted:
            self._ban(logits[row], slot, known_tokens, prompt)
        return logits

    def _ban(self, logits: torch.Tensor, slot: int, known: int, prompt: int) -> None:
        """Forbidden tokens of one row [V], in place."""
        extras = self._table.extras[slot]
        if extras.bad_words is None and extras.stop_ids is None:
            return
        banned = _banned(logits, extras, self._slots.tokens[slot, prompt:known], known - prompt)
        nothing_left = (banned == -torch.inf).all()
        logits.copy_(torch.where(nothing_left, logits, banned))

    def _choose(self, logits: torch.Tensor, draw: Draw) -> torch.Tensor:
        floats = self._table.floats.index_select(0, draw.slots)
        ints = self._table.ints.index_select(0, draw.slots)
        temperature = floats[:, Float.TEMPERATURE].contiguous()
        if draw.used & Uses.TRUNCATION:
            top_p, min_p = floats[:, Float.TOP_P].contiguous(), floats[:, Float.MIN_P].contiguous()
            floor = cut(logits, temperature, ints[:, Int.TOP_K].contiguous(), top_p, min_p)
        else:
            floor = torch.full_like(temperature, -torch.inf)
        seeds, output_index = ints[:, Int.SEED].contiguous(), ints[:, Int.OUTPUT_INDEX].contiguous()
        return choose(logits, floor, temperature, seeds, draw.positions, output_index)

    def _asked(self, rows: Rows, asking: Int64) -> tuple[tuple[Part, ...], Int64]:
        """What the rows that ask for logprobs ask for: the parts, and their named ids as one table [Q, m]."""
        plan_rows = rows.sampling[asking]
        extras = [self._table.extras[slot] for slot in rows.slots[plan_rows].tolist()]
        parts = tuple(
            Part(row, False, int(rows.known[row]), 1, e.logprobs, e.named_ids)
            for row, e in zip(plan_rows.tolist(), extras, strict=True)
        )
        named = np.zeros((len(parts), max(len(part.named_ids) for part in parts)), dtype=np.int64)
        for line, part in zip(named, parts, strict=True):
            line[: len(part.named_ids)] = part.named_ids
        return parts, named


def _banned(logits: torch.Tensor, extras: Extras, output: torch.Tensor, num_output: int) -> torch.Tensor:
    """Copy of one row [V] without its bad words and, before min_tokens, its stop tokens."""
    banned = logits.clone()
    if extras.bad_words is not None:
        _ban_words(banned, extras.bad_words, output)
    if extras.stop_ids is not None and num_output < extras.min_tokens:
        banned.index_fill_(0, extras.stop_ids, -torch.inf)  # assigned, the number would be copied, which waits
    return banned


def _ban_words(logits: torch.Tensor, words: BadWords, output: torch.Tensor) -> None:
    """Forbid, in place, the last token of every word whose other tokens end `output`. One row: [V]."""
    width = words.prefixes.shape[1]
    tail = output[max(0, output.shape[0] - width) :]
    # shorter outputs are padded with what equals no token
    tail = torch.nn.functional.pad(tail, (width - tail.shape[0], 0), value=-2)
    matches = ((words.prefixes == tail) | (words.prefixes == -1)).all(dim=1)
    bans = torch.where(matches, -torch.inf, torch.inf)
    logits.scatter_reduce_(0, words.last, bans, "amin")
