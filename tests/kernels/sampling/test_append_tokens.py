"""Sampled tokens stand behind the known ones of their slots, and nothing else in the tables changes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.cpu.sampling.sample import append_tokens as append_on_cpu
from quire.kernels.sampling.append_tokens import append_tokens, append_tokens_reference


@pytest.mark.parametrize("form", [append_tokens_reference, append_on_cpu, append_tokens])
@settings(max_examples=30)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.permutations(range(6)), st.integers(0, 6))
def test_each_form_appends_one_token_a_row(form, counts, order, num_rows):
    slots = [slot for slot in order if slot < len(counts)][:num_rows]
    tokens = torch.arange(len(counts) * 8).view(-1, 8).int()
    wanted, known = tokens.tolist(), torch.tensor(counts)
    form(tokens, known, torch.tensor(slots, dtype=torch.int64), torch.arange(900, 900 + len(slots)))
    for number, slot in enumerate(slots):
        wanted[slot][counts[slot]] = 900 + number
    assert tokens.tolist() == wanted
    assert known.tolist() == [count + (slot in slots) for slot, count in enumerate(counts)]


@pytest.mark.parametrize(
    ("changed", "argument"),
    [
        ({"known": torch.zeros(3).int()}, "known"),
        ({"known": torch.zeros(2).long()}, "known"),
        ({"slots": torch.zeros(1).int()}, "slots"),
        ({"slots": torch.zeros((1, 1)).long()}, "slots"),
        ({"token_ids": torch.zeros(2).long()}, "token_ids"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(changed, argument):
    given = {
        "tokens": torch.zeros(3, 8).int(),
        "known": torch.zeros(3).long(),
        "slots": torch.zeros(1).long(),
        "token_ids": torch.zeros(1).long(),
    }
    with pytest.raises(ValueError, match=f"^{argument}:"):
        append_tokens(*(given | changed).values())
