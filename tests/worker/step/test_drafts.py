"""Drafts in a worker that runs ahead of its results: counts live on the device, and texts are those without drafts."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest

from quire.proto.messages.params import SamplingParams

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from drafting import DraftingHand, DraftingSampler
from recording import BLOCK, LateDevice, gpu_runner

PROMPTS = [np.random.default_rng(n).integers(1, 320, length).tolist() for n, length in enumerate((5, 19, 7))]
PARAMS = [SamplingParams(temperature=t, seed=n, max_tokens=1000) for n, t in enumerate((0.0, 1.0, 0.3))]
LENGTH = 30


def alone(driver, length=LENGTH):
    """The tokens of each prompt, one after another and without drafts; the slots are free again."""
    texts = {}
    for slot, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
        texts[slot] = driver.generate(slot, prompt, length, params)
        driver.scribe.release(slot)
    driver.run([])
    return texts


def drafting(driver, texts, acceptance, seed):
    """The driver's worker drafts from now on, and has the prompts' first tokens."""
    whole = {slot: PROMPTS[slot] + text for slot, text in texts.items()}
    driver.runner._output = DraftingSampler(driver.runner, whole, acceptance, seed)
    hand = DraftingHand(driver, random.Random(seed))
    driver.scribe.next_block = 0
    for slot, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
        driver.scribe.admit(slot, prompt, params)
    rows = sorted(range(3), key=lambda slot: len(PROMPTS[slot]) > 1)
    drawn = driver.draw([(slot, len(PROMPTS[slot])) for slot in rows])
    hand.tokens = {slot: [token] for slot, token in zip(rows, drawn, strict=True)}
    return hand


def run_ahead(hand, length=LENGTH - 8):
    """Steps with up to two in flight, until every text has this length. Returns how many tokens each step drew."""
    counts = []
    while min(map(len, hand.tokens.values())) < length:
        hand.launch([slot for slot, tokens in hand.tokens.items() if len(tokens) < length])
        if hand.num_in_flight == 2:
            counts.append(hand.collect())
    while hand.num_in_flight:
        counts.append(hand.collect())
    return counts


def is_prefix(tokens, text):
    return all(text[slot][: len(own)] == own[: len(text[slot])] for slot, own in tokens.items())


@pytest.mark.parametrize(("acceptance", "seed", "longest"), [(0.0, 1, {1}), (0.5, 2, {2, 3, 4}), (1.0, 4, {4})])
def test_texts_do_not_depend_on_drafts_in_a_worker_that_runs_ahead(driver, acceptance, seed, longest):
    texts = alone(driver)
    hand = drafting(driver, texts, acceptance, seed)
    counts = run_ahead(hand)
    assert is_prefix(hand.tokens, texts)
    assert max(max(step) for step in counts) in longest


def test_the_hosts_counts_are_exact_once_every_result_is_here(driver):
    hand = drafting(driver, alone(driver), 0.5, 5)
    slots = driver.runner._slot_table
    hand.launch([0, 1, 2]), hand.launch([0, 1, 2])
    bounds = slots.num_tokens[:3].copy()
    hand.collect(), hand.collect()
    driver.run([])  # a launch takes in what was collected
    known = [len(PROMPTS[slot]) + len(hand.tokens[slot]) for slot in range(3)]
    assert slots.num_tokens[:3].tolist() == slots.known[:3].tolist() == known
    assert slots.num_computed[:3].tolist() == [count - 1 for count in known]
    assert not slots.num_unconfirmed.any()
    assert (bounds >= known).all()
    assert (bounds > known).any()


def test_a_step_without_drafts_may_follow_one_with_drafts_unseen(driver):
    texts = alone(driver)
    hand = drafting(driver, texts, 0.5, 6)
    for drafts in (True, False, True, True, False, False):
        hand.launch([0, 1, 2], drafts)
    while hand.num_in_flight:
        hand.collect()
    assert is_prefix(hand.tokens, texts)


def test_a_slot_given_away_while_its_drafts_are_in_flight_draws_the_next_ones_text(driver):
    texts = alone(driver)
    hand = drafting(driver, texts, 0.5, 7)
    hand.launch([0, 1, 2])
    driver.scribe.release(1)
    del hand.tokens[1]
    driver.scribe.admit(1, PROMPTS[0], PARAMS[0])
    again = driver.draw([(1, len(PROMPTS[0]))])
    hand.collect()
    hand.tokens[1] = again
    run_ahead(hand)
    assert is_prefix(hand.tokens, {**texts, 1: texts[0]})


@pytest.mark.thorough
@pytest.mark.integration
def test_texts_do_not_depend_on_drafts_in_captured_steps(as_on_a_gpu, drive, tiny_checkpoint):
    """The path of a GPU: recorded buckets with rows of drafts, and results that are 9 until they are waited for."""
    driver = drive(gpu_runner(tiny_checkpoint(), captured=True, kind=LateDevice), BLOCK)
    texts = alone(driver, 16)
    hand = drafting(driver, texts, 0.5, 8)
    counts = run_ahead(hand, 8)
    assert max(max(step) for step in counts) > 1, "no draft was accepted"
    assert is_prefix(hand.tokens, texts)
