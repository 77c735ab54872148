"""Embeddings put in place of looked-up ones: tokens as if they had been looked up, however the work is cut."""

import numpy as np
import pytest
import torch

from quire.worker.batch import Embedded
from quire.worker.media.media_inputs import NO_MEDIA, StepMedia

BLOCK = 8
PROMPTS = [np.random.default_rng(n).integers(1, 320, length).tolist() for n, length in enumerate((21, 40, 13))]
HIDDEN = [set(range(3, 18)), {0, *range(9, 35)}, {12}]
"""Positions of each prompt whose token the plan does not know."""


class Recalled:
    """A double of an encoder's items: it remembers the tokens that plans show as 0."""

    def __init__(self, model):
        embedding = model.embedding
        with torch.inference_mode():
            self._vectors = embedding.embed(torch.arange(embedding.vocab_size))
        self.num_given = 0

    def prepare(self, plan, rows, upload):
        source = [
            PROMPTS[slot][position] if position in HIDDEN[slot] else -1
            for slot, computed, count in zip(
                rows.slots.tolist(), rows.computed.tolist(), rows.counts.tolist(), strict=True
            )
            for position in range(computed, computed + count)
        ]
        given = sum(row >= 0 for row in source)
        self.num_given += given
        return StepMedia(Embedded(torch.tensor(source), self._vectors)) if given else NO_MEDIA

    def run(self, plan, media):
        return None


def shown(slot):
    """The prompt as plans show it."""
    return [0 if position in HIDDEN[slot] else token for position, token in enumerate(PROMPTS[slot])]


@pytest.fixture
def recalled(driver):
    """The driver with the double in its runner."""
    driver.runner._media = Recalled(driver.runner._model)
    return driver


@pytest.fixture
def expected(tiny_checkpoint, reference):
    def tokens(slot, count):
        prompt = PROMPTS[slot]
        ids = torch.tensor([prompt])
        out = reference.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=None)
        return out[0, len(prompt) :].tolist()

    return tokens


def test_a_mixed_step_draws_what_it_draws_of_looked_up_ones(recalled, expected):
    for slot in range(3):
        recalled.scribe.admit(slot, shown(slot))
    drawn = [recalled.draw([(slot, len(PROMPTS[slot])) for slot in range(3)])]
    drawn += [recalled.draw([(slot, 1) for slot in range(3)]) for _ in range(5)]
    assert [list(tokens) for tokens in zip(*drawn, strict=True)] == [expected(slot, 6) for slot in range(3)]
    assert recalled.runner._media.num_given == sum(map(len, HIDDEN))


def test_chunks_may_end_anywhere_among_them(recalled, expected):
    recalled.scribe.admit(0, shown(0))
    neighbour = recalled.draw([(0, 21)])
    recalled.scribe.admit(1, shown(1))
    for chunk in (1, 8, 5, 12, 9):
        neighbour += recalled.draw([(0, 1), (1, chunk)])
    first, own = recalled.draw([(0, 1), (1, 5)])
    assert [*neighbour, first] == expected(0, 7)
    assert [own, *recalled.draw([(1, 1)])] == expected(1, 2)


def test_blocks_that_hold_their_keys_are_read_as_any_others(recalled, expected):
    recalled.scribe.admit(1, shown(1))
    recalled.draw([(1, 40)])
    shared = recalled.scribe.tables[1][:3]
    recalled.scribe.release(1)
    given = recalled.runner._media.num_given
    blocks = shared + recalled.scribe.blocks(2)
    assert recalled.generate(1, shown(1), 4, computed=3 * BLOCK, blocks=blocks) == expected(1, 4)
    assert recalled.runner._media.num_given - given == len([one for one in HIDDEN[1] if one >= 3 * BLOCK])
