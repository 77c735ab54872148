"""Labels of tokens against transformers' logits: whole prompts and in chunks, heads without biases, two ranks."""

import functools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from labelled_models import DECODERS, MODELS, PROMPTS, write

from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import ALONE
from quire.worker.models.build import build_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs import sizes
from quire.worker.specs.architectures import TOKEN_LABELLED
from quire.worker.specs.registry import read_spec
from quire.worker.weights.parts import ModelError

ENCODERS = [name.replace("Sequence", "Token") for name in MODELS]
OF_DECODERS = [
    f"{name}ForTokenClassification" for name in TOKEN_LABELLED if f"{name}ForSequenceClassification" in DECODERS
]


@pytest.fixture
def checkpoint(tmp_path):
    """`checkpoint(architecture, **fields) -> folder`, see `labelled_models`."""
    return functools.partial(write, tmp_path)


def expected(folder):
    """transformers' logits [tokens, labels] of each of PROMPTS."""
    model = transformers.AutoModelForTokenClassification.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",  # which alone caps scores
    ).eval()
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0].numpy() for prompt in PROMPTS]


def numbers(result, width):
    return [np.frombuffer(vector, np.float32).reshape(-1, width) for vector in result.embeddings]


@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("architecture", ENCODERS)
def test_each_token_of_an_encoders_prompts_gets_the_logits_of_transformers(
    architecture, num_labels, checkpoint, started
):
    folder = checkpoint(architecture, num_labels=num_labels)
    driver = started(folder)
    assert (driver.facts.task, driver.facts.by_token, driver.facts.vector_size) == ("classify", True, num_labels)
    for slot, prompt in enumerate(PROMPTS):
        driver.scribe.admit(slot, prompt)
    result = driver.run([(slot, len(prompt)) for slot, prompt in enumerate(PROMPTS)])
    for ours, theirs in zip(numbers(result, num_labels), expected(folder), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-5)


@pytest.mark.parametrize("architecture", OF_DECODERS)
def test_each_token_of_a_decoders_prompts_does_though_they_come_in_chunks(architecture, checkpoint, started):
    folder = checkpoint(architecture, num_labels=3)
    driver = started(folder)
    assert (driver.facts.by_token, driver.facts.shares_prefixes) == (True, False)
    for slot, prompt in enumerate(PROMPTS):
        driver.scribe.admit(slot, prompt)
    found = {slot: [] for slot in range(len(PROMPTS))}
    for step in ([(2, 29)], [(2, 1), (0, 3)], [(1, 3), (0, 4), (2, len(PROMPTS[2]) - 30)]):
        for (slot, count), part in zip(step, numbers(driver.run(step), 3), strict=True):
            assert len(part) == count
            found[slot].append(part)
    for slot, theirs in enumerate(expected(folder)):
        np.testing.assert_allclose(np.concatenate(found[slot]), theirs, atol=5e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("architecture", ["BertForTokenClassification", "Qwen3ForTokenClassification"])
def test_two_ranks_give_the_numbers_of_one(architecture, checkpoint, group, scribe, settings):
    folder = checkpoint(architecture, num_labels=3)
    ranks = group(2, model=str(folder))
    assert ranks.join()[0].facts.by_token
    writer = scribe(settings["block_size"])
    for slot, prompt in enumerate(PROMPTS):
        writer.admit(slot, prompt)
    result = ranks.step(writer.plan([(slot, len(prompt)) for slot, prompt in enumerate(PROMPTS)])[1])
    for ours, theirs in zip(numbers(result, 3), expected(folder), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-5)
    assert ranks.stop() == [0, 0]


def test_a_head_may_have_no_bias_and_may_be_left_out(checkpoint, started):
    folder = checkpoint("Qwen3ForTokenClassification", num_labels=3, token_classification_bias=False)
    driver = started(folder, task="reward")
    assert (driver.facts.task, driver.facts.head.activation) == ("reward", "none")
    driver.scribe.admit(0, PROMPTS[1])
    (ours,) = numbers(driver.run([(0, len(PROMPTS[1]))]), 3)
    np.testing.assert_allclose(ours, expected(folder)[1], atol=5e-5)
    embedding = started(folder, task="embed")
    assert (embedding.facts.task, embedding.facts.by_token, embedding.facts.vector_size) == ("embed", False, 64)


def test_a_row_with_values_that_are_no_numbers_is_named_though_its_prompt_goes_on(checkpoint, started):
    folder = checkpoint("Qwen3ForTokenClassification", num_labels=3)
    driver = started(folder)
    driver.runner._model.classifier.output.stored("weight").data[0, 0] = float("nan")
    for slot in (0, 2):
        driver.scribe.admit(slot, PROMPTS[slot])
    assert driver.run([(0, 7), (2, 20)]).bad_rows == (0, 1)


@pytest.mark.parametrize(
    ("fields", "task", "text"),
    [
        ({"num_labels": 3}, "score", r"task: a score is one number, and Bert\w+ gives each token some; use classify"),
        ({"num_labels": 1}, "score", r"task: a score is one number"),
        ({"num_labels": 1025}, "auto", r"id2label: must name up to 1024 labels of tokens, got 1025"),
        ({"num_labels": 3}, "generate", r"task: BertForTokenClassification has no head to generate with"),
    ],
)
def test_what_cannot_be_served_is_refused_by_field(fields, task, text, checkpoint):
    folder = checkpoint("BertForTokenClassification", **fields)
    with pytest.raises(ModelError, match=text):
        read_spec(folder, task)


@pytest.mark.parametrize("architecture", [*ENCODERS, *OF_DECODERS])
def test_a_head_is_counted_as_it_is_built(architecture, checkpoint):
    folder = checkpoint(architecture, num_labels=3)
    spec = read_spec(folder)
    assert json.loads((folder / "config.json").read_text())["architectures"] == [spec.architecture]
    context = BuildContext(ALONE, torch.device("meta"), torch.float32, everywhere(DenseScheme()))
    built = sum(parameter.numel() for parameter in build_model(spec, context).parameters())
    assert sizes.count(spec, 1).num_parameters == built
