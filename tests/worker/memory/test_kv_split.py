"""The choice of KV groups: least bytes for a sequence of a stated length, in one pool."""

import pytest
import torch

from quire.worker.memory.kv_cache import KVCache
from quire.worker.memory.kv_layout import kv_layout
from quire.worker.specs.kv_split import MOST_GROUPS, split
from quire.worker.specs.spec import LayerKV
from quire.worker.weights.parts import ModelError

FULL, NARROW = LayerKV(16, 2, 128, None), LayerKV(16, 2, 128, 1024)
GEMMA3_27B = ([NARROW] * 5 + [FULL]) * 10 + [NARROW] * 2


def own_bytes(layers, token_bytes, length):
    return sum(size * min(length, layer.window or length) for layer, size in zip(layers, token_bytes, strict=True))


def test_a_sequence_of_a_gemma_takes_little_more_than_its_layers_see():
    sizes = [8192] * 62
    found = split(GEMMA3_27B, sizes, 16, 8192)
    assert len(found.groups) <= MOST_GROUPS
    assert sorted(number for group in found.groups for number in group.numbers) == list(range(62))
    own = own_bytes(GEMMA3_27B, sizes, 8192)
    assert own < found.bytes_for(8192) < 1.1 * own
    assert "52 layers with a window of 1024 in 6 groups" in found.in_words()
    assert "7 % more than its layers see" in found.in_words()


def test_layers_with_and_without_windows_are_apart_where_sequences_are_longer_than_windows():
    for context, count in ((1024, 1), (8192, 7)):
        found = split(GEMMA3_27B, [8192] * 62, 16, context)
        assert len(found.groups) == count
        for group in found.groups:
            windows = {GEMMA3_27B[number].window for number in group.numbers}
            assert group.window == (None if None in windows else 1024)


def test_one_group_of_all_has_no_words_unless_it_has_a_window():
    assert split([FULL] * 4, [8192] * 4, 16, 8192).in_words() == ""
    assert "3 layers with a window of 1024 in 1 group" in split([NARROW] * 3, [8192] * 3, 16, 8192).in_words()


def test_layers_that_keep_less_have_longer_blocks_of_as_many_bytes():
    layers = [LayerKV(16, 2, 256, 1024)] * 5 + [LayerKV(4, 8, 512, None)]
    layout = kv_layout(layers, 16, torch.bfloat16, 8192, 2048)
    assert {(group.block_size, group.window) for group in layout.groups} == {(16, 1024), (32, None)}
    assert len({group.layer_bytes for group in layout.groups}) == 1
    cache = KVCache(layout, 3, torch.device("cpu"))
    assert [tuple(part.keys.shape) for part in cache.layers] == [(3, 16, 16, 256)] * 5 + [(3, 32, 4, 512)]
    assert cache.num_bytes == sum(page.nbytes for pages in cache.pages for page in pages)


def test_layers_that_no_pool_holds_are_refused():
    with pytest.raises(ModelError, match="layer_types: its layers keep 1536 and 2048 bytes of a token"):
        split([LayerKV(3, 1, 128, None), LayerKV(4, 1, 128, 8)], [1536, 2048], 16, 64)


@pytest.mark.parametrize("step", [1, 7, 64])
def test_a_sequence_never_needs_more_than_its_window_and_a_step(step):
    layout = kv_layout([LayerKV(1, 1, 8, 10)], 4, torch.float32, 64, step)
    (most,) = layout.most_blocks
    for begin in range(200):
        touched = (begin + step - 1) // 4 - max(0, begin - 10) // 4 + 1
        assert touched <= most
    assert layout.windows == (10,)
    assert layout.tokens_in(most, 5000) == 5000
    assert layout.tokens_in(most - 1, 5000) == 4 * (most - 1)
