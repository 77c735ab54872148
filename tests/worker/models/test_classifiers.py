"""Numbers of labels against transformers' logits: pairs with their types, heads of every shape, and what is refused."""

import functools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from labelled_models import DECODERS, MODELS, PROMPTS, write

from quire.proto.messages.heads import HeadFacts
from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import ALONE
from quire.worker.models.build import build_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs import sizes
from quire.worker.specs.architectures import LABELLED
from quire.worker.specs.head_spec import read_padding
from quire.worker.specs.registry import read_spec
from quire.worker.weights.parts import ModelError

SECOND_TEXTS = [4, 0, 3]
"""Of each prompt; the one in the middle is no pair."""


@pytest.fixture
def checkpoint(tmp_path):
    """`checkpoint(architecture, **fields) -> folder`, see `labelled_models`."""
    return functools.partial(write, tmp_path)


def numbers(result):
    return [np.frombuffer(vector, np.float32) for vector in result.embeddings]


def expected(folder, second_texts=None):
    """transformers' logits of each of PROMPTS."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",  # which alone caps scores
    ).eval()
    found = []
    for prompt, second in zip(PROMPTS, second_texts or [0] * len(PROMPTS), strict=True):
        types = {"token_type_ids": torch.tensor([[int(0 < second <= at) for at in range(len(prompt))]])}
        with torch.inference_mode():
            found.append(model(torch.tensor([prompt]), **(types if any(second_texts or ()) else {})).logits[0].numpy())
    return found


@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("architecture", MODELS)
def test_pairs_in_one_step_get_the_logits_of_transformers(architecture, num_labels, checkpoint, started):
    folder = checkpoint(architecture, num_labels=num_labels)
    driver = started(folder)
    assert (driver.facts.task, driver.facts.embedding_size) == ("score" if num_labels == 1 else "classify", 0)
    assert driver.facts.vector_size == len(driver.facts.head.labels) == num_labels
    for slot, (prompt, second) in enumerate(zip(PROMPTS, SECOND_TEXTS, strict=True)):
        driver.scribe.admit(slot, prompt, second_text=second)
    result = driver.run([(slot, len(prompt)) for slot, prompt in enumerate(PROMPTS)])
    wanted = expected(folder, SECOND_TEXTS if architecture.startswith("Bert") else None)
    for ours, theirs in zip(numbers(result), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("architecture", DECODERS)
def test_a_decoders_last_token_is_classified_though_its_prompt_comes_in_chunks(
    architecture, num_labels, checkpoint, started
):
    folder = checkpoint(architecture, num_labels=num_labels)
    driver = started(folder)
    assert driver.facts.task == ("score" if num_labels == 1 else "classify")
    assert (driver.facts.whole_prompts, driver.facts.shares_prefixes) == (False, True)
    for slot, prompt in enumerate(PROMPTS):
        driver.scribe.admit(slot, prompt)
    lengths = [len(prompt) for prompt in PROMPTS]
    assert numbers(driver.run([(2, 29)])) == []
    result = driver.run([(1, lengths[1]), (0, lengths[0]), (2, lengths[2] - 29)])
    wanted = expected(folder)
    for ours, index in zip(numbers(result), (1, 0, 2), strict=True):
        np.testing.assert_allclose(ours, wanted[index], atol=2e-5)


def test_a_slot_forgets_the_pair_that_it_held(checkpoint, started):
    folder = checkpoint("BertForSequenceClassification", num_labels=2)
    driver = started(folder)
    for second in (4, 0, 2):
        driver.scribe.admit(1, PROMPTS[0], second_text=second)
        (ours,) = numbers(driver.run([(1, len(PROMPTS[0]))]))
        np.testing.assert_allclose(ours, expected(folder, [second, 1, 1])[0], atol=2e-5)
        driver.scribe.release(1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("architecture", ["BertForSequenceClassification", "Qwen3ForSequenceClassification"])
def test_two_ranks_give_the_numbers_of_one(architecture, checkpoint, group, scribe, settings):
    folder = checkpoint(architecture, num_labels=3)
    ranks = group(2, model=str(folder))
    assert ranks.join()[0].facts.task == "classify"
    writer = scribe(settings["block_size"])
    for slot, (prompt, second) in enumerate(zip(PROMPTS, SECOND_TEXTS, strict=True)):
        writer.admit(slot, prompt, second_text=second)
    result = ranks.step(writer.plan([(slot, len(prompt)) for slot, prompt in enumerate(PROMPTS)])[1])
    wanted = expected(folder, SECOND_TEXTS if architecture.startswith("Bert") else None)
    for ours, theirs in zip(numbers(result), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    assert ranks.stop() == [0, 0]


def test_a_classifier_embeds_without_its_head(checkpoint, started):
    folder = checkpoint("BertForSequenceClassification", num_labels=2)
    driver = started(folder, task="embed")
    assert (driver.facts.task, driver.facts.vector_size, driver.facts.head) == ("embed", 64, None)
    driver.scribe.admit(0, PROMPTS[1])
    (ours,) = numbers(driver.run([(0, len(PROMPTS[1]))]))
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        theirs = model(torch.tensor([PROMPTS[1]])).last_hidden_state[0, 0].numpy()
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize(
    ("num_labels", "task", "fields", "activation"),
    [
        (1, "auto", {}, "sigmoid"),
        (1, "auto", {"problem_type": "regression"}, "sigmoid"),
        (1, "auto", {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "none"),
        (1, "auto", {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, "sigmoid"),
        (1, "classify", {"problem_type": "regression"}, "none"),
        (1, "reward", {}, "none"),
        (3, "auto", {}, "softmax"),
        (3, "auto", {"problem_type": "single_label_classification"}, "softmax"),
        (3, "classify", {"problem_type": "multi_label_classification"}, "sigmoid"),
        (3, "auto", {"problem_type": "regression"}, "none"),
        (3, "reward", {}, "none"),
    ],
)
def test_the_activation_follows_from_task_and_files(num_labels, task, fields, activation, checkpoint):
    folder = checkpoint("XLMRobertaForSequenceClassification", num_labels=num_labels)
    change(folder, **fields)
    assert read_spec(folder, task).head.activation == activation


def test_labels_have_the_names_that_config_json_gives_them(checkpoint):
    folder = checkpoint("BertForSequenceClassification", id2label={0: "no", 1: "yes", 2: "maybe"})
    assert read_spec(folder).head.facts == HeadFacts(("no", "yes", "maybe"), "softmax")
    change(folder, id2label=None)
    assert read_spec(folder).head.labels == ("LABEL_0", "LABEL_1")  # as transformers counts where nothing is stated


@pytest.mark.parametrize(
    ("fields", "task", "text"),
    [
        ({}, "score", r"task: a score is one number, and BertForSequenceClassification has 3 labels; use classify"),
        ({}, "generate", r"task: BertForSequenceClassification has no head to generate with"),
        ({"problem_type": ["regression"]}, "auto", r"problem_type: \['regression'\] is not supported"),
        ({"problem_type": "ranking"}, "auto", r"problem_type: 'ranking' is not supported; supported: regression"),
        ({"id2label": {"1": "a"}}, "auto", r"id2label: must name label 0"),
        ({"id2label": {"0": "a" * 300}}, "auto", r"id2label: must name label 0 in up to 256 characters"),
        ({"id2label": []}, "auto", r"id2label: must map the numbers of 1 to 16384 labels"),
        ({"id2label": None, "num_labels": 0}, "auto", r"num_labels: must be an integer in \[1, 16384\]"),
        (
            {"id2label": {"0": "a"}, "sentence_transformers": {"activation_fn": "os.system"}},
            "auto",
            r"activation_fn: 'os.system' is not supported; supported: Identity, Sigmoid",
        ),
    ],
)
def test_heads_that_cannot_be_served_are_refused_by_field(fields, task, text, checkpoint):
    folder = checkpoint("BertForSequenceClassification", num_labels=3)
    change(folder, **fields)
    with pytest.raises(ModelError, match=text):
        read_spec(folder, task)


def test_the_oldest_checkpoints_bring_tensors_that_nobody_needs(checkpoint, started):
    folder = checkpoint("RobertaForSequenceClassification", num_labels=1)
    wanted = expected(folder)[1]
    tensors = load_file(folder / "model.safetensors")
    tensors["roberta.pooler.dense.weight"] = torch.zeros(64, 64)
    tensors["roberta.embeddings.position_ids"] = torch.arange(130)[None]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    driver = started(folder)
    driver.scribe.admit(0, PROMPTS[1])
    np.testing.assert_allclose(numbers(driver.run([(0, len(PROMPTS[1]))]))[0], wanted, atol=2e-5)


def change(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    config.update(fields)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("architecture", [*MODELS, *DECODERS])
def test_a_head_is_counted_as_it_is_built(architecture, checkpoint):
    spec = read_spec(checkpoint(architecture, num_labels=3))
    context = BuildContext(ALONE, torch.device("meta"), torch.float32, everywhere(DenseScheme()))
    built = sum(parameter.numel() for parameter in build_model(spec, context).parameters())
    assert sizes.count(spec, 1).num_parameters == built


@pytest.mark.parametrize("architecture", DECODERS)
def test_a_decoder_is_labelled_before_the_padding_that_transformers_takes_its_texts_to_end_with(
    architecture, checkpoint
):
    """A prompt that ends with it has the numbers of what comes before; one that is nothing else, of its first token."""
    folder = checkpoint(architecture, num_labels=2)
    assert read_spec(folder).head.facts.padding == DECODERS[architecture][1]["pad_token_id"]
    assert read_spec(folder, "embed").head is None
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        text, padded, padding, one = (
            model(torch.tensor([ids])).logits for ids in ([2, 7, 1, 3], [2, 7, 1, 3, 1, 1], [1, 1], [1])
        )
    torch.testing.assert_close(padded, text)
    torch.testing.assert_close(padding, one)
    change(folder, pad_token_id=None)
    assert read_spec(folder).head.padding == -1
    for wrong in ("</s>", True, [1], 1 << 70):
        change(folder, pad_token_id=wrong)
        with pytest.raises(ModelError, match="pad_token_id: must be a token id or null, got"):
            read_spec(folder)


def test_others_take_padding_for_any_token(checkpoint):
    for architecture in MODELS:
        folder = checkpoint(architecture, num_labels=2)
        change(folder, is_causal=False)  # as they are
        assert read_spec(folder).head.padding == -1


@pytest.mark.parametrize("name", LABELLED)
def test_padding_that_is_left_out_is_that_of_the_librarys_config(name):
    kind = getattr(transformers, f"{name}ForSequenceClassification").config_class
    meant = kind().pad_token_id
    assert read_padding({"model_type": kind.model_type}) == (-1 if meant is None else meant)
