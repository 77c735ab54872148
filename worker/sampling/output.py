"""The form of what a step's hidden states become: the runner knows no other."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import torch

from quire.proto.messages.plans import StepPlan
from quire.worker.device.marks import Mark
from quire.worker.sampling.logprobs import Scored
from quire.worker.tables.slot_table import StepRows
from quire.worker.tables.upload import Upload

M = TypeVar("M")


class StepOutput(NamedTuple):
    """Tokens or vectors of the S rows that reach the end of their known tokens, on the device or fetched from it."""

    finite: torch.Tensor
    """bool [S]: all that the row computed is finite"""
    token_ids: torch.Tensor | None = None
    """int64 [S]; [S, 1 + drafts] of a step with drafts; None: vectors were made instead"""
    counts: torch.Tensor | None = None
    """int64 [S]: leading `token_ids` that count, in a step with drafts"""
    vectors: torch.Tensor | None = None
    """float32 [S, hidden], not normalised, or [S, labels]; [T, labels] where each token has some"""
    num_vectors: tuple[int, ...] | None = None
    """[R]: those of each row, where each token has some; `finite` then is bool [R]"""
    scored: tuple[Scored, ...] = ()


def no_output() -> StepOutput:
    """The output of a step that only computes prompts, or nothing at all."""
    return StepOutput(torch.empty(0, dtype=torch.bool), torch.empty(0, dtype=torch.int64))


class OutputForm(Protocol[M]):
    """Makes a step's output; one step after the other, equal on every rank."""

    def prepare(self, plan: StepPlan, rows: StepRows, upload: Upload) -> M:
        """Decide, on the host alone, what the step's output needs, and put that into its upload. Raises PlanError."""
        ...

    def run(self, metadata: M, hidden: torch.Tensor, stored: Callable[[], None]) -> StepOutput:
        """Queue the output of `hidden` [T, hidden], padding behind the step's tokens.

        `stored` is called once that is queued which the next step needs.
        """
        ...

    def on_launched(self, metadata: M, output: StepOutput, mark: Mark) -> tuple[int, ...]:
        """The output will be on the host, in `output`, when the mark has passed. Returns those of the S rows whose
        grammar is stuck."""
        ...
