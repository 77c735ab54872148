"""Positions of prompts with items, against transformers, however the prompt is cut."""

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.proto.messages.media import MediaSpan
from quire.worker.media.spans import Spans

MERGE = 2
SIDES = st.integers(1, 7)


def grid(rows, columns):
    return 1, MERGE * rows, MERGE * columns


@st.composite
def prompts(draw):
    """(spans, length): texts of 0 to 5 tokens before, between and behind one to four items."""
    spans, index = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 4))):
        rows, columns = draw(SIDES), draw(SIDES)
        spans.append(MediaSpan(index, rows * columns, (1, MERGE * rows, MERGE * columns)))
        index += rows * columns + draw(st.integers(1, 5))
    return spans, index + draw(st.integers(0, 5))


@pytest.fixture(scope="module")
def reference():
    """`reference(spans, length) -> positions [3, length]`, delta."""
    config = transformers.Qwen3VLConfig(
        text_config={"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1},
        vision_config={"depth": 1, "hidden_size": 16, "num_heads": 1, "spatial_merge_size": MERGE},
    )
    with torch.device("meta"):
        model = transformers.Qwen3VLModel(config)

    def positions(spans, length):
        types = torch.zeros((1, length), dtype=torch.int32)
        for span in spans:
            types[0, span.start : span.stop] = 1
        grids = torch.tensor([span.grid for span in spans])
        ids = torch.zeros((1, length), dtype=torch.int64)
        found, delta = model.get_rope_index(ids, types, image_grid_thw=grids)
        return found[:, 0], int(delta[0, 0])

    return positions


@settings(max_examples=100)
@given(SIDES, SIDES, st.integers(0, 5), st.data())
def test_row_ends_have_no_row_of_their_item(rows, columns, start, data):
    breaks = data.draw(st.sampled_from((0, 1)))
    span = MediaSpan(start, rows * (columns + breaks), (1, MERGE * rows, MERGE * columns), num_breaks=breaks * rows)
    numbers = iter(range(rows * columns))
    expected = [next(numbers) if place < columns else -1 for _ in range(rows) for place in range(columns + breaks)]
    first = data.draw(st.integers(span.start, span.stop - 1))
    last = data.draw(st.integers(first + 1, span.stop))
    assert Spans([span], MERGE).rows(0, first, last).tolist() == expected[first - start : last - start]


@settings(max_examples=100)
@given(SIDES, SIDES, st.lists(st.integers(0, 20), min_size=1, max_size=4), st.integers(0, 5), st.data())
def test_frames_of_a_video_count_from_its_first(rows, columns, times, start, data):
    """The rule of Qwen2.5-VL's paper: what follows goes on behind the largest position of any axis."""
    elapsed, size, spans = sorted(times), rows * columns, [MediaSpan(start, rows * columns, grid(rows, columns))]
    for number, time in enumerate(elapsed, 1):
        spans.append(MediaSpan(start + number * size, size, grid(rows, columns), elapsed=time))
    expected = [[index] * 3 for index in range(start)]
    expected += [
        [start + time, start + row, start + column]
        for time in (0, *elapsed)
        for row in range(rows)
        for column in range(columns)
    ]
    follows = max(max(position) for position in expected) + 1
    expected += [[follows + index] * 3 for index in range(4)]
    begin = data.draw(st.integers(0, len(expected) - 1))
    end = data.draw(st.integers(begin + 1, len(expected)))
    ours = Spans(spans, MERGE)
    assert ours.positions(begin, end).T.tolist() == expected[begin:end]
    assert ours.shift(len(expected)) == follows + 4 - len(expected)


@settings(max_examples=200)
@given(prompts(), st.data())
def test_positions_are_those_of_transformers_in_any_chunks(reference, prompt, data):
    spans, length = prompt
    expected, delta = reference(spans, length)
    ours = Spans(spans, MERGE)
    assert ours.shift(length) == delta
    begin = 0
    while begin < length:
        end = data.draw(st.integers(begin + 1, length))
        assert ours.positions(begin, end).tolist() == expected[:, begin:end].tolist()
        touched = [number for number, span in enumerate(spans) if span.start < end and begin < span.stop]
        assert list(ours.within(begin, end)) == touched
        if not touched:
            assert (expected[:, begin:end] - torch.arange(begin, end) == ours.shift(begin)).all()
        begin = end
