"""The effects of one event: instructions in order, with one `Outputs` message per frontend."""

from itertools import pairwise

import numpy as np

from quire.proto.messages.heads import EmbeddingVector
from quire.proto.messages.requests import Finish, OutputLogprobs, Outputs
from quire.scheduler.core.accept import Accepted
from quire.scheduler.state.events import Instruction, SendOutputs
from quire.scheduler.state.running import Running
from quire.scheduler.state.sequence import Frontend

_INT32, _INT64 = np.dtype("<i4"), np.dtype("<i8")


class _Columns:
    __slots__ = ("embeddings", "finishes", "logprobs", "numbers", "output_indices", "positions", "token_ids")

    def __init__(self) -> None:
        self.numbers = self.output_indices = self.positions = self.token_ids = b""
        self.finishes: list[Finish] = []
        self.logprobs: list[OutputLogprobs] = []
        self.embeddings: list[EmbeddingVector] = []


class Effects:
    """Instructions under construction: outputs first, by frontend, then everything else in the order it was emitted."""

    def __init__(self) -> None:
        self._columns: dict[bytes, _Columns] = {}
        self._others: list[Instruction] = []

    def emit(self, instruction: Instruction) -> None:
        self._others.append(instruction)

    def finish(self, frontend: bytes, finish: Finish) -> None:
        self._of(frontend).finishes.append(finish)

    def logprobs(self, frontend: bytes, logprobs: OutputLogprobs) -> None:
        self._of(frontend).logprobs.append(logprobs)

    def embedding(self, frontend: bytes, embedding: EmbeddingVector) -> None:
        self._of(frontend).embeddings.append(embedding)

    def tokens(self, running: Running, frontends: list[Frontend | None], accepted: Accepted) -> None:
        """Split a step's tokens by frontend. Every slot must still have its output."""
        if not accepted.slots:
            return
        if len(accepted.slots) == 1:
            slots, positions, tokens = accepted.slots[0], accepted.positions[0], accepted.tokens[0]
        else:
            slots = np.concatenate(accepted.slots)
            positions, tokens = np.concatenate(accepted.positions), np.concatenate(accepted.tokens)
        if not len(slots):
            return
        owners = running.frontend[slots]
        bounds = [0, len(slots)]
        if len(frontends) > 1:
            order = np.argsort(owners, kind="stable")
            slots, positions, tokens, owners = slots[order], positions[order], tokens[order], owners[order]
            bounds[1:1] = (np.flatnonzero(np.diff(owners)) + 1).tolist()
        numbers = running.number[slots].astype(_INT64, copy=False)
        indices = running.output_index[slots].astype(_INT32)
        places, ids = positions.astype(_INT32), tokens.astype(_INT32, copy=False)
        for start, end in pairwise(bounds):
            frontend = frontends[owners[start]]
            if frontend is None:
                raise LookupError(f"frontend index {owners[start]} is unused")
            columns = self._of(frontend.identity)
            columns.numbers = numbers[start:end].tobytes()
            columns.output_indices = indices[start:end].tobytes()
            columns.positions = places[start:end].tobytes()
            columns.token_ids = ids[start:end].tobytes()

    def instructions(self, epoch: int) -> list[Instruction]:
        sends: list[Instruction] = [
            SendOutputs(
                identity,
                Outputs(
                    epoch,
                    columns.numbers,
                    columns.output_indices,
                    columns.positions,
                    columns.token_ids,
                    tuple(columns.finishes),
                    tuple(columns.logprobs),
                    tuple(columns.embeddings),
                ),
            )
            for identity, columns in self._columns.items()
        ]
        return sends + self._others

    def _of(self, frontend: bytes) -> _Columns:
        columns = self._columns.get(frontend)
        if columns is None:
            columns = self._columns[frontend] = _Columns()
        return columns
