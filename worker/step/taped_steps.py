"""Taped steps: the whole forward pass as a list of native calls, which one call makes for any step small enough."""

import logging
from collections.abc import Callable

import torch

from quire.kernels.cpu.tape import NotNativeError, Tape
from quire.proto.process.sizes import format_bytes
from quire.worker.device.device import Device
from quire.worker.specs.tape import most_taped_tokens
from quire.worker.step.inputs import Bucket

_log = logging.getLogger(__name__)


class TapedSteps:
    """One tape of the largest step, replayed with the numbers of tokens and rows that each step has: none is padded."""

    def __init__(self, device: Device, max_tokens: int, max_rows: int) -> None:
        self._device = device
        num_tokens = most_taped_tokens(max_tokens, max_rows)
        self._largest = Bucket(num_tokens, min(max_rows, num_tokens), True)
        self._tape: Tape | None = None

    def capture(
        self, run: Callable[[Bucket], torch.Tensor], hidden_size: int, dtype: torch.dtype, most: int | None = None
    ) -> None:
        """See `Graphs`. A model that needs an operation of torch is left without a tape, and the log says so."""
        try:
            self._tape = self._device.tape(lambda: run(self._largest), self._largest.num_tokens, self._largest.num_rows)
        except NotNativeError as error:
            _log.warning("steps run call by call: %s", error)
            return
        size = format_bytes(self._tape.num_bytes)
        _log.info("steps of up to %d tokens: one tape of %d calls, %s", self._largest.num_tokens, len(self._tape), size)

    def fitting(self, num_tokens: int, num_rows: int) -> Bucket | None:
        """The size of the step itself; None: run it as it is."""
        largest = self._largest
        if self._tape is None or num_tokens > largest.num_tokens or num_rows > largest.num_rows:
            return None
        return Bucket(num_tokens, num_rows, num_tokens > num_rows)

    def replay(self, bucket: Bucket) -> torch.Tensor:
        """Run the step; its hidden states, valid until the next replay."""
        assert self._tape is not None
        return self._tape.replay(bucket.num_tokens, bucket.num_rows)

    def close(self) -> None:
        self._tape = None
