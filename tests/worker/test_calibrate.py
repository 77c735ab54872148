"""Scales out of a cache that holds a sequence: powers of two, of the largest number on any rank."""

import pytest
import torch

from quire.worker.calibrate import calculated_scales, in_digest
from quire.worker.device.parallel import SingleGroup
from quire.worker.memory.kv_cache import KVCache
from quire.worker.memory.kv_layout import kv_layout
from quire.worker.specs.spec import LayerKV
from quire.worker.weights.parts import ModelError


class Beside(SingleGroup):
    """The other rank has these numbers."""

    def __init__(self, *largest):
        self._largest = torch.tensor(largest)[:, None]

    def all_gather(self, tensor):
        return torch.cat((tensor, self._largest), dim=-1)


def cache(*largest, dtype=torch.float32):
    """Layers of two heads, with these numbers as the largest keys and values of one of them."""
    layers = len(largest) // 2
    filled = KVCache(kv_layout([LayerKV(2, 1, 4, None)] * layers, 8, dtype), 3, torch.device("cpu"))
    for number, layer in enumerate(filled.layers):
        layer.keys[1, 2, number % 2, 3] = largest[2 * number]
        layer.values[2, 7, 1, 0] = -largest[2 * number + 1]
        layer.values[0, 0, 0, 0] = largest[2 * number + 1] / 2
    return filled


@pytest.mark.parametrize(
    ("largest", "scale"),
    [(0.0, 1.0), (111.0, 1.0), (112.0, 2.0), (113.0, 2.0), (4.4, 2.0**-4), (5453.0, 64.0), (1e-44, 2.0**-100)],
)
def test_a_scale_is_the_least_power_of_two_that_keeps_codes_below_a_quarter_of_the_largest(largest, scale):
    ((key, value),) = calculated_scales(cache(largest, 2 * largest), SingleGroup())
    assert key.tolist() == [scale, scale]
    assert value.tolist() == [scale if largest in (0.0, 1e-44) else 2 * scale] * 2


def test_the_largest_of_all_ranks_counts_layer_by_layer():
    filled = cache(1.0, 300.0, 20.0, 5.0, dtype=torch.bfloat16)
    alone, together = (calculated_scales(filled, group) for group in (SingleGroup(), Beside(100.0, 2.0, 2000.0, 5.0)))
    assert in_digest(alone) == (2.0**-6, 4.0, 2.0**-2, 2.0**-4)
    assert in_digest(together) == (1.0, 4.0, 32.0, 2.0**-4)


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_numbers_that_are_not_finite_on_any_rank_are_refused_with_their_layer(bad):
    for filled, group in (
        (cache(1.0, 1.0, 1.0, bad), SingleGroup()),
        (cache(1.0, 1.0, 1.0, 1.0), Beside(1, 1, bad, 1)),
    ):
        with pytest.raises(ModelError, match=r"^calculate_kv_scales: keys or values of layer 1 are not finite"):
            calculated_scales(filled, group)
