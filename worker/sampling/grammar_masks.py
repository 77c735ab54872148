"""The matchers of the slots: what the grammar of each output allows next, as bits for the sampler.

Compiling happens in threads of its own from the admission on; masks are made in another one while the device runs the
layers, from the tokens sampled so far. A step waits for both only where it is about to sample. Where the host's cores
are the device nothing runs beside it: a thread of masks would keep the layers' threads waiting, so masks come first.
What limits a mask is counted, not timed: every rank makes equal ones. Their time is measured as well, because all rows
of a step wait for the slowest; it changes no mask, it ends an output, and of that the reporter alone is heard.

Shape legend: G rows with a grammar, W words of 32 tokens.
"""

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from llguidance import LLExecutor, LLMatcher, LLTokenizer

from quire.proto.messages.params import ParameterError, SamplingParams, Structured
from quire.proto.messages.plans import Admit, StepPlan
from quire.proto.messages.structured import TokenizerUnfit, load_vocabulary, new_matcher
from quire.proto.process.control_group import num_cores
from quire.proto.transport.wire import unpack
from quire.worker.device.daemon_pool import DaemonPool
from quire.worker.device.device import Device
from quire.worker.device.marks import Mark

MAX_CACHE_BYTES = 64 << 20
GRAMMAR_BYTES, TEXT_FACTOR = 128 << 10, 24
"""A compiled grammar takes about so much, and so many times its text."""
COMPILERS = 2
MOST_THREADS = 8
FREE_SECONDS = 0.01
"""Seconds that each token of an output has. One of JSON takes a hundredth of them; one of a grammar that reads its text
in many ways, any time: the library's counts are reached at half a second a token."""
WATCHED_STEPS = 16
"""Steps that are timed row by row after a slow one, because grammars are slow by turns."""
MAX_SECONDS = 2.0
"""Seconds that an output may take beyond, as long as compiling may: others have waited so long for it."""

_log = logging.getLogger(__name__)

Bits = npt.NDArray[np.int32]


@dataclass(slots=True)
class _SlotMatcher:
    """The matcher of one slot, and the sampled token that it has not consumed yet."""

    matcher: "Future[LLMatcher | None]"
    """Resolves to None when the grammar does not compile here."""
    allowed: Bits | None
    """The request's own allowed ids: [W]."""
    sampled: "_SampledToken | None" = None
    seconds: float = 0.0
    """Seconds taken beyond what is free."""

    @property
    def is_late(self) -> bool:
        return self.seconds > MAX_SECONDS

    def charge(self, seconds: float) -> bool:
        """True for a token that took more than is free."""
        if seconds <= FREE_SECONDS:
            return False
        was_late = self.is_late
        self.seconds += seconds - FREE_SECONDS
        if self.is_late and not was_late:
            _log.warning("others waited %g s for a grammar: its output ends", MAX_SECONDS)
        return True


class _Turn(NamedTuple):
    """The work of one row's matcher in a step."""

    row: int
    slot_matcher: _SlotMatcher
    matcher: LLMatcher
    token: int | None
    """To consume before the mask is made."""

    def take(self, masks: int, num_bytes: int) -> None:
        """Alone, in this thread. `masks`: address of the first row's, each of so many bytes."""
        if self.token is not None:
            self.matcher.consume_token(self.token)
        self.matcher.unsafe_compute_mask_ptr(masks + self.row * num_bytes, num_bytes)


@dataclass(frozen=True, slots=True)
class _SampledToken:
    """A token on its way to the host: it is there once the mark has passed."""

    token_ids: torch.Tensor
    index: int
    mark: Mark


@dataclass(frozen=True, slots=True)
class GrammarMasks:
    """The tokens that the rows with a grammar may sample in one step."""

    bits: Bits
    """[G, W]; all set where the grammar allows no token."""
    stuck: tuple[int, ...]
    """Those of the G rows whose grammar allows no token, gave up or took too long. Their tokens mean nothing."""


class GrammarMatchers:
    """Follows the plans as the slots do; nothing is started before the first request that has a grammar."""

    def __init__(
        self, folder: Path, vocab_size: int, eos_token_ids: tuple[int, ...], num_slots: int, device: Device
    ) -> None:
        """`folder` holds tokenizer.json; `vocab_size` is the width of the logits."""
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._device = device
        self._matchers: list[_SlotMatcher | None] = [None] * num_slots
        self._compilers = DaemonPool("grammar compiler", COMPILERS)
        self._masker = DaemonPool("grammar masks", 1)
        self._compiled = _Compiled(MAX_CACHE_BYTES)
        self._vocabulary: Future[LLTokenizer] | None = None
        self._executor: LLExecutor | None = None
        self._num_threads = max(1, min(MOST_THREADS, num_cores() // 2))
        self._watched = 0
        """Steps yet to come whose rows are timed, one after the other, because one of them is slow."""

    def apply(self, plan: StepPlan) -> None:
        """Drop the matchers of released slots, begin those of admitted ones; after `SlotTable` found the plan sound."""
        if plan.releases:
            for slot in unpack(plan.releases).tolist():
                self._matchers[slot] = None
        for admit in plan.admits:
            structured = admit.params.structured
            if structured is not None:
                self._matchers[admit.slot] = self._begin(admit, structured)

    def masks(self, slots: Sequence[int]) -> "Future[GrammarMasks]":
        """Begin the masks of these slots' next tokens; every token before was named by `on_sampled`."""
        pending = []
        for slot in slots:
            slot_matcher = self._matchers[slot]
            assert slot_matcher is not None
            pending.append((slot_matcher, slot_matcher.sampled))
            slot_matcher.sampled = None
        if self._device.works_beside:
            return self._masker.submit(self._make_masks, pending)
        made: Future[GrammarMasks] = Future()
        made.set_result(self._make_masks(pending))
        return made

    def upload(self, masks: GrammarMasks) -> torch.Tensor:
        """The bits on the device: int32 [G, W]."""
        return self._device.upload(masks.bits)

    def on_sampled(self, slots: Sequence[int], indices: Sequence[int], token_ids: torch.Tensor, mark: Mark) -> None:
        """These slots' tokens are `token_ids[indices]` on the host, once the mark has passed."""
        for slot, index in zip(slots, indices, strict=True):
            slot_matcher = self._matchers[slot]
            assert slot_matcher is not None
            slot_matcher.sampled = _SampledToken(token_ids, index, mark)

    def _begin(self, admit: Admit, structured: Structured) -> _SlotMatcher:
        if self._vocabulary is None:
            self._vocabulary = self._compilers.submit(
                load_vocabulary, self._folder, self._vocab_size, self._eos_token_ids
            )
            if self._device.works_beside:
                self._executor = LLExecutor(self._num_threads)
        output = unpack(admit.tokens)[admit.num_prompt :].tolist()
        matcher = self._compilers.submit(self._matcher, self._vocabulary, structured, output)
        return _SlotMatcher(matcher, self._allowed(admit.params))

    def _matcher(
        self, vocabulary: "Future[LLTokenizer]", structured: Structured, output: list[int]
    ) -> LLMatcher | None:
        """The matcher behind the output so far, which is not empty after a preemption. Runs in a compiling thread."""
        key = hashlib.sha256(msgspec.msgpack.encode(structured)).digest()
        try:
            matcher = self._compiled.find(key)
            if matcher is None:
                matcher = new_matcher(vocabulary.result(), structured)
                self._compiled.keep(key, matcher, GRAMMAR_BYTES + TEXT_FACTOR * len(structured.text))
                matcher = matcher.deep_copy()
        except (ParameterError, TokenizerUnfit) as error:
            _log.error("a grammar that the frontend let pass does not compile: %s", error)
            return None
        matcher.consume_tokens(output)
        return matcher

    def _allowed(self, params: SamplingParams) -> Bits | None:
        if not params.allowed_token_ids:
            return None
        allowed = np.zeros(self._num_words * 32, dtype=np.uint8)
        allowed[list(params.allowed_token_ids)] = 1
        return np.packbits(allowed, bitorder="little").view(np.int32)

    @property
    def _num_words(self) -> int:
        return -(-self._vocab_size // 32)

    def _make_masks(self, pending: list[tuple[_SlotMatcher, _SampledToken | None]]) -> GrammarMasks:
        """The matchers consume their tokens and compute their masks. Runs in the masks' thread."""
        bits = np.full((len(pending), self._num_words), -1, dtype=np.int32)
        turns = []
        on_host: dict[int, list[int]] = {}
        for row, (slot_matcher, sampled) in enumerate(pending):
            matcher = slot_matcher.matcher.result()
            if matcher is None:
                continue
            token = None
            if sampled is not None:
                if id(sampled.token_ids) not in on_host:  # mostly one step's for all
                    sampled.mark.wait()
                    on_host[id(sampled.token_ids)] = sampled.token_ids.tolist()
                token = on_host[id(sampled.token_ids)][sampled.index]
            turns.append(_Turn(row, slot_matcher, matcher, token))
        self._advance(turns, bits)
        free = {turn.row for turn in turns if not turn.matcher.is_error()}
        for row, (slot_matcher, _) in enumerate(pending):
            if row in free and slot_matcher.allowed is not None:
                bits[row] &= slot_matcher.allowed
                if not bits[row].any():
                    free.discard(row)
        bits[[row for row in range(len(pending)) if row not in free]] = -1
        stuck = (row for row, (slot_matcher, _) in enumerate(pending) if row not in free or slot_matcher.is_late)
        return GrammarMasks(bits, tuple(stuck))

    def _advance(self, turns: list[_Turn], bits: Bits) -> None:
        """Tokens in, masks out. Waking a thread costs as much as several masks: it pays where cores are free."""
        masks, num_bytes = bits.ctypes.data, 4 * bits.shape[1]
        if self._watched:
            self._watched -= 1
            for turn in turns:
                begun = time.thread_time()  # without what a busy machine keeps it waiting
                turn.take(masks, num_bytes)
                if turn.slot_matcher.charge(time.thread_time() - begun):
                    self._watched = WATCHED_STEPS
            return
        begun, rounds = time.perf_counter(), 1
        if self._executor is None:
            for turn in turns:
                turn.take(masks, num_bytes)
        elif turns:
            if consumed := [(turn.matcher, turn.token) for turn in turns if turn.token is not None]:
                self._executor.consume_token_par(consumed)
            masked = [(turn.matcher, turn.row) for turn in turns]
            self._executor.unsafe_compute_mask_ptr(masked, masks, num_bytes, len(bits))
            rounds = -(-len(turns) // self._num_threads)
        if time.perf_counter() - begun > rounds * FREE_SECONDS:
            self._watched = WATCHED_STEPS


class _Compiled:
    """Matchers at their start, by the hash of their grammar; copies share what is computed of it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: OrderedDict[bytes, tuple[LLMatcher, int]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: bytes) -> LLMatcher | None:
        """A copy to use."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0].deep_copy()

    def keep(self, key: bytes, matcher: LLMatcher, num_bytes: int) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = matcher, num_bytes
            self._num_bytes += num_bytes
            while self._num_bytes > self._max_bytes:
                _, (_, freed) = self._kept.popitem(last=False)
                self._num_bytes -= freed
