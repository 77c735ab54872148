"""Sampling parameters of every slot: dense columns on the device, rare ones as objects, and the stages a slot needs."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from quire.proto.messages.params import SamplingParams
from quire.worker.device.device import Device
from quire.worker.tables.upload import Upload


class SamplingStage(enum.IntFlag):
    """Stages of sampling a slot needs; the host skips a stage that no row of the step needs."""

    RANDOM = 1
    TRUNCATION = 2
    PENALTIES = 4
    BIAS = 8
    ALLOWED = 16
    BAD_WORDS = 32
    MIN_TOKENS = 64
    LOGPROBS = 128
    PROMPT_LOGPROBS = 256
    GRAMMAR = 512


_LEAST_DIVISOR = 1e-30
"""Logits divided by this are still finite in float32."""

SPARSE = (
    SamplingStage.BIAS
    | SamplingStage.ALLOWED
    | SamplingStage.BAD_WORDS
    | SamplingStage.MIN_TOKENS
    | SamplingStage.GRAMMAR
)


class FloatColumn(enum.IntEnum):
    """Columns of `SamplingTable.floats`."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2
    REPETITION = 3
    PRESENCE = 4
    FREQUENCY = 5


class IntColumn(enum.IntEnum):
    """Columns of `SamplingTable.ints`."""

    TOP_K = 0
    SEED = 1
    OUTPUT_INDEX = 2


@dataclass(frozen=True, slots=True)
class BadWords:
    """W forbidden sequences: after `prefixes[w]` (right-aligned, int32 [W, P], -1 in front) never `last[w]` (int64)."""

    prefixes: torch.Tensor
    last: torch.Tensor
    offsets: torch.Tensor
    """int64 [P]: where the prefixes' tokens stand, counted from the token that is drawn: -P to -1"""


@dataclass(frozen=True, slots=True)
class Extras:
    """Parameters that few requests use. Tensors are on the device; None where the request does not ask."""

    bias: tuple[torch.Tensor, torch.Tensor] | None = None
    """ids int64 [k], addends float32 [k]"""
    allowed: torch.Tensor | None = None
    """int32 [ceil(vocab_size / 32)]: one bit for each token, 1 where it may be sampled"""
    bad_words: BadWords | None = None
    stop_ids: torch.Tensor | None = None
    """int64 [k]: forbidden while the output has fewer than min_tokens tokens"""
    min_tokens: int = 0
    logprobs: int = -1
    named_ids: tuple[int, ...] = field(default=())
    prompt_logprobs: int = -1


class Columns(NamedTuple):
    """One slot's line of the dense tables, on its way to the device."""

    floats: torch.Tensor
    ints: torch.Tensor


class SamplingTable:
    """Rows are written whole at admission and reset whole at release: nothing of an earlier request remains."""

    def __init__(self, num_slots: int, vocab_size: int, eos_token_ids: tuple[int, ...], device: Device) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._device = device
        self.floats = torch.zeros(num_slots, len(FloatColumn), dtype=torch.float32, device=device.torch)
        self.ints = torch.zeros(num_slots, len(IntColumn), dtype=torch.int64, device=device.torch)
        self.stages = np.zeros(num_slots, dtype=np.int32)
        self.extras: list[Extras] = [Extras()] * num_slots

    def admit(self, slot: int, params: SamplingParams, output_index: int, upload: Upload) -> Columns:
        """The host's part of an admission."""
        p = params
        temperature = 0.0 if p.greedy else max(p.temperature, _LEAST_DIVISOR)
        top_k = p.top_k if p.top_k < self._vocab_size else 0
        repetition = max(p.repetition_penalty, _LEAST_DIVISOR)
        floats = (temperature, p.top_p, p.min_p, repetition, p.presence_penalty, p.frequency_penalty)
        self.extras[slot] = self._extras(p)
        self.stages[slot] = int(self._stages(p, self.extras[slot]))
        ints = np.array((top_k, p.seed, output_index), dtype=np.int64)
        return Columns(upload.put(np.array(floats, dtype=np.float32)), upload.put(ints))

    def write(self, slot: int, columns: Columns) -> None:
        """The device's part."""
        self.floats[slot] = columns.floats
        self.ints[slot] = columns.ints

    def release(self, slot: int) -> None:
        """The host's part of a release."""
        self.extras[slot] = Extras()
        self.stages[slot] = 0

    def clear(self, slot: int) -> None:
        """The device's part."""
        self.floats[slot] = 0.0
        self.ints[slot] = 0

    def _stages(self, p: SamplingParams, extras: Extras) -> SamplingStage:
        stages = SamplingStage(0)
        if not p.greedy:
            stages |= SamplingStage.RANDOM
            if 0 < p.top_k < self._vocab_size or p.top_p < 1.0 or p.min_p > 0.0:
                stages |= SamplingStage.TRUNCATION
        if p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0:
            stages |= SamplingStage.PENALTIES
        needed = (
            (SamplingStage.BIAS, extras.bias is not None),
            (SamplingStage.ALLOWED, extras.allowed is not None),
            (SamplingStage.BAD_WORDS, extras.bad_words is not None),
            (SamplingStage.MIN_TOKENS, extras.stop_ids is not None),
            (SamplingStage.LOGPROBS, p.logprobs >= 0),
            (SamplingStage.PROMPT_LOGPROBS, p.prompt_logprobs >= 0),
            (SamplingStage.GRAMMAR, p.structured is not None),
        )
        for flag, is_needed in needed:
            if is_needed:
                stages |= flag
        return stages

    def _extras(self, p: SamplingParams) -> Extras:
        stops = p.stop_token_ids if p.ignore_eos else (*p.stop_token_ids, *self._eos_token_ids)
        return Extras(
            bias=self._bias(p.logit_bias),
            allowed=self._bits(p.allowed_token_ids),
            bad_words=self._bad_words(p.bad_words),
            stop_ids=self._upload(stops) if p.min_tokens and stops else None,
            min_tokens=p.min_tokens,
            logprobs=p.logprobs,
            named_ids=p.logprob_token_ids,
            prompt_logprobs=p.prompt_logprobs,
        )

    def _upload(self, values: Sequence[object], dtype: type[np.generic] = np.int64) -> torch.Tensor:
        return self._device.upload(np.array(values, dtype=dtype))

    def _bits(self, ids: tuple[int, ...]) -> torch.Tensor | None:
        if not ids:
            return None
        allowed = np.zeros(-(-self._vocab_size // 32) * 32, dtype=np.uint8)
        allowed[list(ids)] = 1
        return self._device.upload(np.packbits(allowed, bitorder="little").view(np.int32))

    def _bias(self, pairs: tuple[tuple[int, float], ...]) -> tuple[torch.Tensor, torch.Tensor] | None:
        if not pairs:
            return None
        ids, addends = zip(*pairs, strict=True)
        return self._upload(ids), self._upload(addends, np.float32)

    def _bad_words(self, words: tuple[tuple[int, ...], ...]) -> BadWords | None:
        if not words:
            return None
        width = max(len(word) for word in words) - 1
        prefixes = np.full((len(words), width), -1, dtype=np.int32)
        for line, word in zip(prefixes, words, strict=True):
            line[width + 1 - len(word) :] = word[:-1]
        return BadWords(
            self._device.upload(prefixes), self._upload([word[-1] for word in words]), self._upload(range(-width, 0))
        )
