"""The sampler against a plain reading of the rules, for any mix of accepted parameters in one batch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parts.examples import share

from quire.kernels.sampling.score import best
from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import Admit, StepPlan
from quire.proto.transport.wire import ints
from quire.worker.device.device import Device
from quire.worker.sampling.sampler import Sampler
from quire.worker.tables.sampling_table import SamplingTable
from quire.worker.tables.slot_table import SlotTable
from quire.worker.tables.upload import Upload

VOCAB = 300
EOS = 2
CPU = Device("cpu", 0)


def sampler_of(requests, head):
    """Sampler, plan and rows for [(params, prompt, output)], each with one token left to run."""
    table = SamplingTable(len(requests), VOCAB, (EOS,), CPU)
    slots = SlotTable(len(requests), 128, 10_000, (4,), table, CPU.torch, VOCAB)
    admits = tuple(
        Admit(
            slot,
            ints(prompt + output),
            len(prompt),
            len(prompt + output) - 1,
            slot % 2,
            params,
            (ints(range(-(-len(prompt + output) // 4))),),
        )
        for slot, (params, prompt, output) in enumerate(requests)
    )
    rows = len(requests)
    plan = StepPlan(1, 1, b"", ints(range(rows)), ints([1] * rows), b"\1" * rows, admits=admits)
    upload = Upload(CPU, rows)
    upload.begin()
    slots.write(slots.apply(plan, upload))
    return Sampler(slots, head, CPU, reports=True), plan, slots.rows(plan, 10_000), slots


class Head:
    """A model whose logits are given."""

    def __init__(self, logits):
        self.given = logits

    def logits(self, hidden):
        return self.given.clone()

    def best(self, hidden):
        values, ids = best(self.given)
        return ids, values.isfinite()


def sample(requests, logits):
    sampler, plan, rows, slots = sampler_of(requests, Head(logits))
    upload = Upload(CPU, len(requests))
    upload.begin()
    stored = []
    hidden = torch.zeros(len(requests), 1)
    drawn = sampler.run(sampler.prepare(plan, rows, upload), hidden, lambda: stored.append(True))
    assert stored == [True]
    for slot, (_, prompt, output) in enumerate(requests):
        assert slots.tokens[slot, len(prompt + output)] == drawn.token_ids[slot], "the token table lacks the token"
    return drawn


def masked(params, prompt, output, row):
    """Penalised, biased and masked logits by definition, in float64."""
    z = row.double().numpy().copy()
    for token in set(prompt + output):
        z[token] = z[token] / params.repetition_penalty if z[token] > 0 else z[token] * params.repetition_penalty
    for token in set(output):
        z[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    for token, addend in params.logit_bias:
        z[token] += addend
    if params.allowed_token_ids:
        z[[token not in params.allowed_token_ids for token in range(VOCAB)]] = -math.inf
    banned = z.copy()
    for word in params.bad_words:
        if len(output) >= len(word) - 1 and output[len(output) - len(word) + 1 :] == list(word[:-1]):
            banned[word[-1]] = -math.inf
    if len(output) < params.min_tokens:
        banned[list(params.stop_token_ids)] = -math.inf
        if not params.ignore_eos:
            banned[EOS] = -math.inf
    return banned if np.isfinite(banned).any() else z


def could_be_drawn(params, z):
    """Ids in the kept set, with room for float32 rounding at its edge."""
    with np.errstate(over="ignore"):
        scaled = (z - z.max()) / params.temperature
    p = np.exp(scaled)
    alive = (p >= params.min_p * (1 - 1e-3)) & np.isfinite(z)
    if 0 < params.top_k < VOCAB:
        alive &= scaled >= np.sort(np.where(alive, scaled, -np.inf))[-params.top_k] - 1e-3
    mass = p * alive
    likelier = np.array([mass[mass > x * (1 + 1e-3)].sum() for x in p])
    return np.flatnonzero(alive & (likelier < params.top_p * mass.sum() * (1 + 1e-3)))


token = st.integers(0, VOCAB - 1)
fraction = st.floats(0.0, 1.0, allow_nan=False)


@st.composite
def params(draw):
    max_tokens = draw(st.integers(1, 30))
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.0, 1e-300, 1e-30, 1e-3, 0.5, 1.0, 2.0])),
        top_p=draw(st.one_of(st.just(1.0), fraction.filter(bool))),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 7, 299, 300, 2**63 - 1])),
        min_p=draw(st.one_of(st.just(0.0), fraction)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1e-20, 0.5, 1.3, 100.0])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, -2.0, 0.7, 2.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, -2.0, 0.3, 2.0])),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, max_tokens)),
        stop_token_ids=tuple(draw(st.lists(token, max_size=3))),
        ignore_eos=draw(st.booleans()),
        logit_bias=tuple(draw(st.lists(st.tuples(token, st.floats(-100, 100)), max_size=3))),
        allowed_token_ids=tuple(draw(st.one_of(st.just([]), st.lists(token, max_size=4)))),
        bad_words=tuple(draw(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple), max_size=4))),
        logprobs=(logprobs := draw(st.sampled_from([-1, -1, 0, 3, 20]))),
        logprob_token_ids=tuple(draw(st.lists(token, max_size=2))) if logprobs >= 0 else (),
    )


request = st.tuples(
    params(), st.lists(st.integers(0, 5), min_size=1, max_size=6), st.lists(st.integers(0, 5), max_size=8)
)


@settings(max_examples=share(200), database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(request, min_size=1, max_size=5), st.integers(0, 10_000), st.sampled_from([0.1, 2.0, 8.0]))
def test_any_mix_of_accepted_parameters_draws_what_each_request_alone_would(requests, seed, spread):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(requests), VOCAB, generator=generator) * spread
    drawn = sample(requests, logits)
    assert drawn.finite.all()
    for row, (p, prompt, output) in enumerate(requests):
        chosen = int(drawn.token_ids[row])
        z = masked(p, prompt, output, logits[row])
        if p.greedy:
            assert z[chosen] == pytest.approx(z.max(), rel=1e-5, abs=1e-5)
        else:
            assert chosen in could_be_drawn(p, z)
        alone = [(p, prompt, output)] * (1 + row % 2)  # the output index is the slot's parity here
        assert int(sample(alone, logits[row].repeat(len(alone), 1)).token_ids[row % 2]) == chosen


def test_greedy_takes_the_lowest_id_among_equals():
    logits = torch.zeros(1, VOCAB)
    logits[0, [250, 7, 90]] = 3.0
    assert sample([(SamplingParams(temperature=0.0), [1], [])], logits).token_ids.tolist() == [7]


def test_penalties_change_what_greedy_takes_only_for_the_row_that_asks():
    logits = torch.zeros(2, VOCAB)
    logits[:, 5], logits[:, 6] = 3.0, 2.5
    penalised = SamplingParams(temperature=0.0, presence_penalty=1.0)
    drawn = sample([(penalised, [1], [5]), (SamplingParams(temperature=0.0), [1], [5])], logits)
    assert drawn.token_ids.tolist() == [6, 5]


def test_bad_words_look_at_the_output_and_not_at_the_prompt():
    logits = torch.zeros(3, VOCAB)
    logits[:, 9], logits[:, 8] = 2.0, 1.0
    p = SamplingParams(temperature=0.0, bad_words=((4, 5, 9),))
    drawn = sample([(p, [1], [4, 5]), (p, [4, 5], []), (p, [1, 4], [5])], logits)
    assert drawn.token_ids.tolist() == [8, 9, 9]


def test_min_tokens_forbids_every_id_that_would_end_the_output_until_then():
    logits = torch.zeros(4, VOCAB)
    logits[:, EOS], logits[:, 30], logits[:, 31] = 3.0, 2.0, 1.0
    p = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(30,))
    ignoring = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(30,), ignore_eos=True)
    drawn = sample([(p, [1], []), (p, [1], [9]), (p, [1], [9, 9]), (ignoring, [1], [])], logits)
    assert drawn.token_ids.tolist() == [31, 31, EOS, EOS]


def test_bans_that_leave_no_token_yield_to_the_allowed_ids():
    p = SamplingParams(temperature=1.0, min_tokens=3, allowed_token_ids=(EOS,), max_tokens=9)
    assert sample([(p, [1], [])], torch.zeros(1, VOCAB)).token_ids.tolist() == [EOS]


def test_a_bad_row_is_reported_and_its_neighbours_are_right():
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(1))
    requests = [(SamplingParams(temperature=t, top_p=0.8, seed=4, logprobs=1), [1], []) for t in (0.0, 1.0, 1.0, 0.0)]
    healthy = sample(requests, logits)
    broken = logits.clone()
    broken[1, 3], broken[3, :] = math.nan, math.inf
    drawn = sample(requests, broken)
    assert drawn.finite.tolist() == [True, False, True, False]
    assert drawn.token_ids[[0, 2]].tolist() == healthy.token_ids[[0, 2]].tolist()
    assert all(0 <= t < VOCAB for t in drawn.token_ids.tolist())


def test_the_temperature_shapes_the_distribution():
    logits = torch.zeros(1, VOCAB)
    logits[0, 10], logits[0, 20] = 2.0, 1.0
    requests = [(SamplingParams(temperature=0.5, seed=s, allowed_token_ids=(10, 20)), [1], []) for s in range(2000)]
    share = sample(requests, logits.repeat(2000, 1)).token_ids.eq(10).double().mean().item()
    # softmax of (4, 2): 0.881; its standard deviation over 2000 draws is 0.007
    assert share == pytest.approx(1 / (1 + math.exp(-2)), abs=0.03)


def test_parameters_too_small_for_float32_still_draw_an_allowed_token():
    tiny = SamplingParams(temperature=1e-320, repetition_penalty=1e-320, top_p=1e-320, min_p=1e-320)
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(2))
    seen = int(logits[0].argmax())
    assert sample([(tiny, [seen], [])], logits).token_ids.tolist() == [seen]
