"""Counts of the tokens that each expert was sent: summed on the device behind every step, read now and then."""

from collections.abc import Mapping

import torch

from quire.proto.messages.plans import ExpertTokens
from quire.worker.device.device import Device
from quire.worker.layers.expert_choice import ExpertChoice


class ExpertCounts:
    """Sums over the steps of one rank, which sees the choices for all of them. No step waits for them."""

    def __init__(self, choices: Mapping[int, ExpertChoice], max_tokens: int, num_ranks: int, device: Device) -> None:
        """`choices`: by the number of the layer, one at least, all of as many experts. `max_tokens`: of a step."""
        first = next(iter(choices.values()))
        spec, (count, k) = first.spec, (first.routing.num_experts, first.routing.top_k)
        assert {(one.routing.num_experts, one.routing.top_k) for one in choices.values()} == {(count, k)}
        self._layers = tuple(choices)
        begins = (spec.shares(rank, num_ranks)[0].start for rank in range(num_ranks))
        self._begins = tuple(begins) if spec.dealt and num_ranks > 1 else ()
        self._device = device
        self._kept = torch.full((len(choices), max_tokens, k), -1, dtype=torch.int32, device=device.torch)
        for choice, kept in zip(choices.values(), self._kept, strict=True):
            choice.kept = kept
        # each layer's row has a place before the experts for what is sent nowhere
        self._counts = torch.zeros((len(choices), 1 + count), dtype=torch.int64, device=device.torch)
        rows = torch.arange(len(choices), device=device.torch)
        self._places_from = (rows * (1 + count) + 1)[:, None, None]
        self._one = torch.ones(1, dtype=torch.int64, device=device.torch)
        self._read: torch.Tensor | None = None

    def begin(self) -> None:
        """Count from here on: what the start has run is no traffic."""
        self._counts.zero_()

    def add(self, num_tokens: int) -> None:
        """Queue the counting of the step that was just queued, of so many tokens."""
        places = (self._kept[:, :num_tokens] + self._places_from).flatten()
        self._counts.view(-1).scatter_add_(0, places, self._one.expand(places.shape))

    def report(self) -> ExpertTokens | None:
        """The sums as they stand, perhaps amid a step; None: they stand as at the last call."""
        counts = self._device.peek(self._counts)
        if self._read is not None and counts.equal(self._read):
            return None
        self._read = counts
        return ExpertTokens(self._layers, counts[:, 1:].contiguous().numpy().tobytes(), self._begins)
