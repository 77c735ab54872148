"""Videos that are one run of tokens in a prompt, their frames items of their own, against transformers."""

import json

import numpy as np
import pytest
import torch
from seen_images import library_model, picture, processed
from test_images_in_prompts import seeing

from quire.proto.messages.media import MediaSpan
from quire.worker.media.spans import Spans

PATCH, MERGE = 14, 2
COUNT = 8
VIDEOS = [
    ("Qwen2VL", 1, 4, 4, 1),
    ("Qwen2VL", 5, 2, 12, 1),
    ("Qwen2_5_VL", 3, 6, 10, 2),
    ("Qwen2_5_VL", 2, 12, 4, 4),
]
"""Family, pairs of frames, rows and columns of patches, positions from one pair to the next: of whole seconds, and no
longer than wide, where the library has the published rule."""


class Asked:
    """A text, a video, a text; `interval`: positions from a pair of its frames to the next."""

    def __init__(self, folder, pairs, rows, columns, interval):
        self.folder, self.grid, self.interval = folder, (pairs, rows, columns), interval
        video = json.loads((folder / "config.json").read_text())["video_token_id"]
        size = rows * columns // MERGE**2
        self.tokens = [17, 30, 301, *[video] * (pairs * size), 44, 45, 46]
        self.frames = [picture(rows, columns, seed=number, patch=PATCH) for number in range(2 * pairs)]
        self.spans = [
            MediaSpan(3 + number * size, size, (2, rows, columns), **({"elapsed": number * interval} if number else {}))
            for number in range(pairs)
        ]

    def inputs(self, continued=()):
        """What the library takes; the interval of Qwen2.5-VL is of 2 positions for each second."""
        pairs, rows, columns = self.grid
        repeated, _ = processed(self.folder, self.frames)  # each frame as an image: of two that are equal the first
        values = repeated.view(pairs, 2, -1, 3, 2, PATCH, PATCH)[..., 0, :, :].permute(0, 2, 3, 1, 4, 5)
        ids = torch.tensor([[*self.tokens, *continued]])
        kinds = torch.zeros_like(ids)
        kinds[:, 3 : 3 + pairs * rows * columns // MERGE**2] = 2
        inputs = {
            "input_ids": ids,
            "mm_token_type_ids": kinds,
            "pixel_values_videos": values.reshape(pairs * rows * columns, -1),
            "video_grid_thw": torch.tensor([self.grid]),
        }
        return inputs if self.interval == 1 else {**inputs, "second_per_grid_ts": torch.tensor([self.interval / 2])}


@pytest.mark.parametrize(("family", "pairs", "rows", "columns", "interval"), VIDEOS)
@pytest.mark.parametrize("chunk", [5, 1 << 30])
@torch.inference_mode()
def test_tokens_behind_a_video_are_those_of_transformers(
    family, pairs, rows, columns, interval, chunk, seeing_checkpoint, load, greedy
):
    folder = seeing_checkpoint(family)
    decoder, asked = load(folder), Asked(folder, pairs, rows, columns, interval)
    pixels = torch.from_numpy(np.stack(asked.frames)).view(pairs, 2, rows * PATCH, columns * PATCH, 3)
    encoded = decoder.vision(list(pixels), [(2, rows, columns)] * pairs)
    length = len(asked.tokens)
    positions = torch.from_numpy(Spans(asked.spans, MERGE).positions(0, length + COUNT))
    source = torch.full((length + COUNT,), -1)
    source[3 : 3 + len(encoded)] = torch.arange(len(encoded))
    (row,) = seeing(greedy, decoder, positions, source, encoded).generate([asked.tokens], COUNT, chunk)
    new = row.tokens[length:]
    logits = library_model(folder)(**asked.inputs(new[:-1])).logits[0, length - 1 :]
    assert new == logits.argmax(-1).tolist()
    torch.testing.assert_close(torch.stack(row.logits), logits, rtol=1e-4, atol=1e-4)
