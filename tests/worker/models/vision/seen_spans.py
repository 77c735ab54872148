"""Prompts with images that the library's processor wrote out, and our greedy loop over them."""

from dataclasses import replace

import torch

from quire.frontend.media.decode.decode_child import image_items
from quire.frontend.media.families.table import read_family
from quire.proto.messages.media import MediaSpan
from quire.worker.batch import Embedded
from quire.worker.media.spans import Spans

COUNT = 8
"""Tokens that are made behind a prompt."""


def items_of(folder, images):
    """The pixels and grids of images as the frontend makes them."""
    family = read_family(folder)
    found = [item for image in images for item in image_items(image, family)]
    sizes = [(rows * family.patch, columns * family.patch) for (_, rows, columns), _ in found]
    bytes_of = (torch.frombuffer(bytearray(one), dtype=torch.uint8) for _, one in found)
    return [one.view(1, *size, 3) for one, size in zip(bytes_of, sizes, strict=True)], [grid for grid, _ in found]


class Case:
    """A prompt, what the library reads of it, and the greedy loop over it. `reference`: the tiny model's; `content`:
    texts and pictures."""

    @torch.inference_mode()
    def __init__(self, greedy, decoder, folder, reference, content):
        self.reference, self.decoder = reference, decoder
        images = [one for one in content if not isinstance(one, str)]
        parts = [{"type": "text", "text": one} if isinstance(one, str) else {"type": "image"} for one in content]
        self.inputs = reference.inputs([{"role": "user", "content": parts}], images)
        self.tokens = self.inputs["input_ids"][0].tolist()
        places = torch.tensor(self.tokens) == reference.row_id
        source = torch.full((len(self.tokens) + COUNT,), -1)
        source[: len(self.tokens)][places] = torch.arange(int(places.sum()))
        pixels, grids = items_of(folder, images)
        rows = decoder.vision(pixels, grids) if images else torch.zeros(1, decoder.spec.hidden_size)
        self.spans = spans_of(places.tolist(), grids, decoder.spec.vision)
        known = Spans(self.spans, 1) if self.spans and decoder.spec.vision.whole_spans else None

        class Seeing(greedy):
            def _hidden(self, batch):
                own = source[batch.positions[0]]
                return batch, self.cache, Embedded(own, rows) if (own >= 0).any() else None

            def _batch(self, work):
                batch = super()._batch(work)
                if known is None:
                    return batch
                seen = [known.visible(row.num_computed, row.num_computed + count) for row, count in work]
                column = torch.cat([torch.from_numpy(one) for one in seen]).int()
                groups = (replace(one, attention=replace(one.attention, last_visible=column)) for one in batch.groups)
                return replace(batch, groups=tuple(groups))

        self.engine = Seeing(decoder)

    def run(self, row, end):
        """Run the row until it has so many tokens, in chunks, and no image in parts whose tokens see each other."""
        while len(row.tokens) < end:
            at = row.num_computed
            stops = [len(row.tokens), at + 5]
            if self.decoder.spec.vision.whole_spans:
                within = [span.stop for span in self.spans if span.start <= at < span.stop]
                stops = within or [*stops, *(span.start for span in self.spans if span.start > at)]
            self.engine.step([(row, min(stops) - at)])
        return row

    def theirs(self):
        return self.reference.greedy(self.inputs, COUNT)


def spans_of(places, grids, vision):
    """The spans of items whose rows stand in these places, in order."""
    spans, start = [], 0
    for grid in grids:
        start = places.index(True, start)
        spans.append(MediaSpan(start, vision.num_rows(grid), grid))
        start = spans[-1].stop
    return spans
