"""Labels every token of a step: the head's numbers of each hidden state, whether or not its prompt ends in the step."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from quire.proto.messages.plans import StepPlan
from quire.worker.device.marks import Mark
from quire.worker.sampling.output import StepOutput
from quire.worker.sampling.pooler import VectorHead
from quire.worker.tables.slot_table import StepRows
from quire.worker.tables.upload import Upload


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """The rows of one step, R of them."""

    counts: tuple[int, ...]
    """Tokens of each row: [R]"""
    on_device: torch.Tensor
    """The same, int64 [R]: a part of the step's upload"""


class TokenLabels:
    """The output form of a model that labels tokens. Nothing is kept: the scheduler puts a prompt's chunks together."""

    def __init__(self, head: VectorHead) -> None:
        self._head = head

    def prepare(self, plan: StepPlan, rows: StepRows, upload: Upload) -> LabelledRows:
        """See `OutputForm`."""
        return LabelledRows(tuple(rows.counts.tolist()), upload.put(rows.counts))

    def run(self, metadata: LabelledRows, hidden: torch.Tensor, stored: Callable[[], None]) -> StepOutput:
        """See `OutputForm`."""
        numbers = self._head(hidden[: sum(metadata.counts)].float())
        wrong = (~numbers.isfinite()).any(-1).float()
        # `unsafe` only skips a check that would wait for the device
        worst = torch.segment_reduce(wrong, "max", lengths=metadata.on_device, axis=0, unsafe=True)
        output = StepOutput(worst == 0.0, vectors=numbers, num_vectors=metadata.counts)
        stored()
        return output

    def on_launched(self, metadata: LabelledRows, output: StepOutput, mark: Mark) -> tuple[int, ...]:
        """See `OutputForm`: numbers have no grammar."""
        return ()
