"""What makes the host wait for a chip is refused by the one that is not here, and nothing else is."""

from pathlib import Path

import pytest
import torch

FULL = torch.zeros(8)
IDS = torch.tensor([1, 3])
MASK = torch.tensor([True, False] * 4)


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside, tensors may be placed, and nothing may wait."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import torch_cuda

    monkeypatch.setattr(torch_cuda, "_debug_mode", "error")


WAITS = {
    "a number at indices": lambda x, ids, mask: x.__setitem__(ids, 1.0),
    "a number of the host at indices": lambda x, ids, mask: x.__setitem__(ids, torch.tensor(1.0)),
    "a list of indices": lambda x, ids, mask: x.__setitem__([1, 3], x[:2]),
    "indices of the host": lambda x, ids, mask: x[IDS],
    "values under a mask": lambda x, ids, mask: x.__setitem__(mask, x[:4]),
    "what lies under a mask": lambda x, ids, mask: x[mask],
    "to the chip": lambda x, ids, mask: FULL.to("cuda"),
    "made of what the host has": lambda x, ids, mask: torch.tensor([1, 3], device="cuda"),
    "to the host": lambda x, ids, mask: x.to("cpu"),
    "copied onto it": lambda x, ids, mask: x.copy_(FULL),
    "read": lambda x, ids, mask: x[0].item(),
}
FREE = {
    "filled at indices": lambda x, ids, mask: x.index_fill_(0, ids, 1.0),
    "values of the chip at indices": lambda x, ids, mask: x.__setitem__(ids, x[:2].clone()),
    "a number in a slice": lambda x, ids, mask: x.__setitem__(slice(1, 3), 1.0),
    "a number at one place": lambda x, ids, mask: x.__setitem__(2, 1.0),
    "a number under a mask": lambda x, ids, mask: x.__setitem__(mask, 1.0),
    "made of nothing": lambda x, ids, mask: torch.full((2,), 1.0, device="cuda"),
    "indexed": lambda x, ids, mask: x[ids],
    "to the chip, not waiting": lambda x, ids, mask: FULL.to("cuda", non_blocking=True),
    "copied onto it, not waiting": lambda x, ids, mask: x.copy_(FULL, non_blocking=True),
    "copied beside": lambda x, ids, mask: x.copy_(x.clone()),
    "of another type": lambda x, ids, mask: x.to(torch.int64),
}


def attempt(run) -> None:
    from places import OnHost

    with OnHost():
        run(*(torch.zeros_like(one, device="cuda") for one in (FULL, IDS, MASK)))


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        attempt(WAITS[name])


@pytest.mark.parametrize("name", FREE)
def test_what_does_not_wait_is_not_refused(name: str) -> None:
    attempt(FREE[name])


def test_stop_tokens_are_forbidden_without_waiting() -> None:
    from quire.worker.sampling.sampler import _banned
    from quire.worker.tables.sampling_table import Extras

    def ban(logits: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> None:
        _banned(logits, Extras(stop_ids=ids, min_tokens=4), ids, ids[0], 1)

    attempt(ban)
