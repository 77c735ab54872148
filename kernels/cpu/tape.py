"""A tape: the native calls of a step, noted once and then made by one call, on whatever their buffers hold by then.

While one is recorded every form for CPUs notes its call in place of making it, so that Python says once what happens,
and no more in any step. The sizes that are a step's numbers of tokens and rows are written anew for each: one tape
serves all steps up to the one that was recorded.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from quire.kernels.cpu import native
from quire.kernels.cpu.arena import Arena

_ALLOCATIONS = ("aten::empty", "aten::new_empty", "aten::empty_like")


class NotNativeError(RuntimeError):
    """An operation that was to be recorded is no call of the library."""


class Tape:
    """Calls and the buffers between them. What the calls read of others, weights and tables, must outlive it."""

    def __init__(self, recorder: "Recorder", result: torch.Tensor) -> None:
        calls = recorder.calls
        width = max(map(len, calls))
        self._lines = np.array([[*call, *[0] * (width - len(call))] for call in calls], dtype=np.int64)
        words = self._lines.reshape(-1)
        self._counts = [
            (words, np.array([line * width + place for line, place in places], dtype=np.int64))
            for places in (recorder.token_places, recorder.row_places)
        ]
        self._arguments = self._lines.ctypes.data, *self._lines.shape
        self._arena, self._result = recorder.arena, result

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def num_bytes(self) -> int:
        """Memory of the buffers between its calls."""
        return self._arena.num_bytes

    def replay(self, num_tokens: int, num_rows: int) -> torch.Tensor:
        """Make the calls for a step of this size, no larger than what was recorded -> its part of the result.

        That holds until the next replay.
        """
        for (words, places), count in zip(self._counts, (num_tokens, num_rows), strict=True):
            words[places] = count
        native.library().quire_replay(*self._arguments, torch.get_num_threads())
        return self._result[:num_tokens]


def record(run: Callable[[], torch.Tensor], num_tokens: int, num_rows: int) -> Tape:
    """The tape of what `run` calls, of which nothing is computed meanwhile; it returns the result, [num_tokens, ...].

    Raises NotNativeError for a step that needs an operation of torch.
    """
    recorder = Recorder(num_tokens, num_rows)
    token = native.recorder.set(recorder)
    try:
        with _NoOperation(recorder.arena):
            result = run()
    finally:
        native.recorder.reset(token)
    return Tape(recorder, result)


class Recorder:
    """Stands in the library's place."""

    def __init__(self, num_tokens: int, num_rows: int) -> None:
        self.arena = Arena()
        self.calls: list[list[int]] = []
        """Address of the function and arguments of each call, all as 8 bytes."""
        self.token_places: list[tuple[int, int]] = []
        """Call and word of each size that is the number of tokens."""
        self.row_places: list[tuple[int, int]] = []
        self._counts = {native.NumTokens: (num_tokens, self.token_places), native.NumRows: (num_rows, self.row_places)}

    def __getattr__(self, function: str) -> Callable[..., None]:
        return functools.partial(self._note, function)

    def _note(self, function: str, *arguments: Any) -> None:
        noted = getattr(native.library(), f"{function}_noted")
        words = [ctypes.cast(noted, ctypes.c_void_p).value or 0]
        for kind, argument in zip(native.ARGUMENTS[function], arguments, strict=True):
            if kind in self._counts:
                count, places = self._counts[kind]
                if argument != count:
                    raise NotNativeError(f"{function}: {kind.__name__} is {argument}, and {count} in the step")
                places.append((len(self.calls), len(words)))
            words.append(_word(kind, argument))
        self.calls.append(words)


class _NoOperation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives torch the memory that it asks for, and refuses all else but views."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arena = arena

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled: torch need not import its compiler to leave this class out."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if not func.is_view and name not in _ALLOCATIONS:
            raise NotNativeError(f"{name} is an operation of torch")
        made = func(*args, **(kwargs or {}))
        return made if func.is_view else self._arena.empty(tuple(made.shape), made.dtype)


def _word(kind: type, argument: Any) -> int:
    """The 8 bytes of an argument; tape.hpp reads them."""
    if kind is ctypes.c_float:
        return int(np.float64(argument).view(np.int64))
    return int(argument or 0)
