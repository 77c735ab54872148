"""Penalties and masks against their formulas, token by token."""

import math

import pytest
import torch

from quire.kernels.sampling.penalize import mask_tokens, penalize

VOCAB = 12


def logits_of(num_rows, vocab=VOCAB, seed=3):
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def test_penalties_follow_their_formulas():
    logits = logits_of(4)
    tokens = torch.tensor(
        [[3, 3, 3, 0, 0, 0, 0], [1] * 7, [4, 5, 6, 7, 8, 9, 9], [1, 2, 2, 5, 5, 5, 9]], dtype=torch.int32
    )
    rows, slots = torch.tensor([3, 0, 2]), torch.tensor([3, 0, 2])
    known, prompt = torch.tensor([7, 3, 7]), torch.tensor([3, 1, 7])
    repetition = torch.tensor([1.5, 0.5, 2.0])
    presence, frequency = torch.tensor([0.3, -1, 2]), torch.tensor([0.2, 1, -2])
    result = logits.clone()
    penalize(result, rows, tokens, slots, known, prompt, repetition, presence, frequency)
    assert torch.equal(result[1], logits[1]), "a row that was not asked for changed"
    for entry, row in enumerate(rows.tolist()):
        everything = tokens[slots[entry], : known[entry]].tolist()
        output = everything[prompt[entry] :]
        for token in range(VOCAB):
            expected = logits[row, token].item()
            if token in everything:
                r = repetition[entry].item()
                expected = expected / r if expected > 0 else expected * r
            expected -= frequency[entry].item() * output.count(token) + presence[entry].item() * (token in output)
            assert result[row, token].item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_rows_without_history_and_tokens_outside_the_vocabulary_change_nothing():
    logits = logits_of(3)
    tokens = torch.tensor([[5, 6, 7], [-1, VOCAB, 99], [-1, 4, 99]], dtype=torch.int32)
    three, ones = torch.arange(3), torch.ones(3)
    result = logits.clone()
    penalize(result, three, tokens, three, torch.tensor([0, 3, 3]), torch.zeros_like(three), 2 * ones, ones, ones)
    changed = (result != logits).nonzero().tolist()
    assert changed == [[2, 4]]


def test_exactly_the_tokens_whose_bit_is_unset_are_forbidden():
    vocab = 70
    logits = logits_of(3, vocab)
    allowed = {0: {0, 31, 32, 69}, 2: set(range(70)) - {1, 63, 64}}
    words = torch.zeros(2, 3, dtype=torch.int64)
    for entry, tokens in enumerate(allowed.values()):
        for token in tokens:
            words[entry, token // 32] |= 1 << (token % 32)
    result = logits.clone()
    mask_tokens(result, torch.tensor([0, 2]), words.to(torch.int32))
    for row in range(3):
        for token in range(vocab):
            expected = logits[row, token].item() if token in allowed.get(row, range(vocab)) else -math.inf
            assert result[row, token].item() == expected


def test_a_view_of_wider_rows_is_changed_in_place():
    wide = logits_of(2, 40)
    before = wide.clone()
    mask_tokens(wide[:, :33], torch.tensor([1]), torch.tensor([[0, -1]], dtype=torch.int32))
    assert wide[1, :32].isinf().all()
    assert torch.equal(wide[1, 32:], before[1, 32:])
    assert torch.equal(wide[0], before[0])


def test_a_wrong_argument_is_refused_by_name():
    logits, rows = logits_of(2, 40), torch.tensor([0])
    with pytest.raises(ValueError, match=r"^bitmask"):
        mask_tokens(logits, rows, torch.zeros(1, 1, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"^logits"):
        mask_tokens(logits.half(), rows, torch.zeros(1, 2, dtype=torch.int32))
    one, tokens = torch.ones(1), torch.zeros(1, 4, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"^tokens: each row"):
        penalize(logits, rows, tokens[:, ::2], rows, rows, rows, one, one, one)
    with pytest.raises(ValueError, match=r"^presence"):
        penalize(logits, rows, tokens, rows, rows, rows, one, one.double(), one)
