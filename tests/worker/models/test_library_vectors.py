"""Numbers of labels and vectors by modules of the transformers library, against the library alone."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.models.build import describe
from quire.worker.specs.registry import read_spec
from quire.worker.specs.sizes import count
from quire.worker.start import start
from quire.worker.weights.parts import ModelError

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from library_models import BASE, MODELS, first_results, write

pytestmark = pytest.mark.integration

PUBLISHED = Path(__file__).parents[2] / "published"
PROMPTS = [[2, 7, 9, 3, 30, 31, 3], [2, 7, 3], [2, 5, 3, *range(40, 100), 3]]
LABELS = {"num_labels": 3}
CLASSIFIERS = {
    "ArceeForSequenceClassification": BASE,
    "GPT2ForSequenceClassification": MODELS["GPT2LMHeadModel"],
    "CTRLForSequenceClassification": MODELS["CTRLLMHeadModel"],
    "DeepseekV3ForSequenceClassification": MODELS["DeepseekV3ForCausalLM"],
}
"""Heads called score and classifier, one with a bias."""
BOTH_WAYS = BASE | {"num_key_value_heads": 4}
TYPES = {"type_vocab_size": 2}
ENCODERS = {
    "ElectraModel": BOTH_WAYS | TYPES,
    "DistilBertModel": {"dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4, "vocab_size": 320},
    "CamembertModel": BOTH_WAYS | {"pad_token_id": 4},
    "ModernBertModel": BOTH_WAYS | {"local_attention": 16, "global_attn_every_n_layers": 3},
    "EuroBertModel": BASE,
    "AlbertModel": BOTH_WAYS | {"embedding_size": 32},
    "ElectraForSequenceClassification": BOTH_WAYS | TYPES | LABELS,
    "ErnieForSequenceClassification": BOTH_WAYS | TYPES | LABELS,
    "ModernBertForSequenceClassification": BOTH_WAYS | LABELS | {"local_attention": 16, "classifier_pooling": "mean"},
    "ModernBertForTokenClassification": BOTH_WAYS | LABELS | {"local_attention": 16},
    "XLMRobertaXLForTokenClassification": BOTH_WAYS | LABELS | {"pad_token_id": 1},
}
"""Positions behind that of padding, windows, grouped heads, a width of embeddings, poolers, and heads of each kind."""
EMBEDDERS = {
    "ArceeModel": BASE,
    "GPT2Model": MODELS["GPT2LMHeadModel"],
    "OPTModel": MODELS["OPTForCausalLM"],
    "DeepseekV3Model": MODELS["DeepseekV3ForCausalLM"],
}


@pytest.fixture
def drive_of(drive):
    """`drive_of(folder, **changes)`: a driver of the model, started on modules of the library."""

    def make(folder, **changes):
        settings = {"max_num_seqs": 4, "max_num_batched_tokens": 128, "kv_cache_memory_bytes": 8 << 20}
        settings |= {"num_threads": 1, "dtype": "float32", "model_impl": "transformers", **changes}
        started = start(WorkerConfig(model=str(folder), device="cpu", **settings), 0, Device("cpu", 0), Groups)
        driver = drive(started.executor, 16)
        driver.facts = started.facts
        return driver

    return make


def vectors(driver):
    """What each of PROMPTS gives, all in one step; the longest comes again, in three."""
    for slot, prompt in enumerate(PROMPTS):
        driver.scribe.admit(slot, prompt)
    found = driver.run([(slot, len(prompt)) for slot, prompt in enumerate(PROMPTS)]).embeddings
    driver.scribe.release(2)
    driver.scribe.admit(2, PROMPTS[2])
    for length in (20, 30):
        assert driver.run([(2, length)]).embeddings == ()
    (again,) = driver.run([(2, len(PROMPTS[2]) - 50)]).embeddings
    return [np.frombuffer(one, np.float32) for one in (*found, again)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("architecture", CLASSIFIERS)
def test_texts_get_the_labels_of_transformers(architecture, tmp_path, drive_of):
    write(tmp_path, architecture, CLASSIFIERS[architecture] | LABELS)
    driver = drive_of(tmp_path)
    assert (driver.facts.task, driver.facts.vector_size) == ("classify", 3)
    stated = transformers.AutoConfig.from_pretrained(tmp_path).pad_token_id
    assert driver.facts.head.padding == (-1 if stated is None else stated)
    expected = first_results(tmp_path, PROMPTS)
    for ours, theirs in zip(vectors(driver), [*expected, expected[2]], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    model = driver.runner._model
    sizes = count(model.spec, 1)
    assert sizes.num_parameters + sizes.padding == sum(one.numel() for one in model.parameters())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("architecture", EMBEDDERS)
def test_a_model_without_a_head_gives_the_last_state_of_transformers(architecture, tmp_path, drive_of):
    write(tmp_path, architecture, EMBEDDERS[architecture])
    driver = drive_of(tmp_path)
    assert driver.facts.task == "embed"
    expected = first_results(tmp_path, PROMPTS)
    for ours, theirs in zip(vectors(driver), [*expected, expected[2]], strict=True):
        np.testing.assert_allclose(ours, theirs[-1], atol=5e-5)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("architecture", ENCODERS)
def test_texts_that_are_read_in_both_directions_give_what_they_give_in_transformers(architecture, tmp_path, drive_of):
    write(tmp_path, architecture, ENCODERS[architecture])
    driver = drive_of(tmp_path)
    assert (driver.facts.whole_prompts, driver.facts.kv_bytes) == (True, 0)
    second_texts = [4, 0, 3] if "type_vocab_size" in ENCODERS[architecture] else None
    for slot, prompt in enumerate(PROMPTS):
        driver.scribe.admit(slot, prompt, second_text=0 if second_texts is None else second_texts[slot])
    result = driver.run([(slot, len(prompt)) for slot, prompt in enumerate(PROMPTS)])
    for ours, theirs in zip(result.embeddings, first_results(tmp_path, PROMPTS, second_texts), strict=True):
        wanted = theirs[0] if architecture.endswith("Model") else theirs.ravel()
        np.testing.assert_allclose(np.frombuffer(ours, np.float32), wanted, atol=5e-5)


def test_tokens_of_a_decoder_get_the_labels_of_transformers(tmp_path, drive_of):
    write(tmp_path, "ArceeForTokenClassification", BASE | LABELS)
    driver = drive_of(tmp_path)
    for slot, prompt in enumerate(PROMPTS):
        driver.scribe.admit(slot, prompt)
    result = driver.run([(slot, len(prompt)) for slot, prompt in enumerate(PROMPTS)])
    for ours, theirs in zip(result.embeddings, first_results(tmp_path, PROMPTS), strict=True):
        np.testing.assert_allclose(np.frombuffer(ours, np.float32), theirs.ravel(), atol=5e-5)


def test_heads_that_a_checkpoint_has_and_the_task_does_without_are_left_out(tmp_path, drive_of):
    write(tmp_path, "ArceeForSequenceClassification", BASE | LABELS)
    driver = drive_of(tmp_path, task="embed")
    assert driver.facts.task == "embed"
    wanted = vectors(driver)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["ArceeModel"]}))
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["score.weight"]
    save_file({**tensors, "lm_head.weight": torch.zeros(320, 64)}, tmp_path / "model.safetensors")
    for bare, headed in zip(vectors(drive_of(tmp_path)), wanted, strict=True):
        np.testing.assert_array_equal(bare, headed)


def test_the_head_is_float32_whatever_the_model_is(tmp_path, drive_of):
    write(tmp_path, "GPT2ForSequenceClassification", CLASSIFIERS["GPT2ForSequenceClassification"] | LABELS)
    head = drive_of(tmp_path, dtype="bfloat16").runner._model.classifier
    assert {one.dtype for one in head.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("NoModel", "is no model of transformers .* either; it is of a newer release, or misspelt"),
        ("ViTModel", "reads no text"),
        ("Qwen3VLVisionModel", "is no table"),
        ("T5Model", "interface for attention"),
        ("AlbertForSequenceClassification", "reads what its trunk pools by itself"),
        ("EuroBertForSequenceClassification", "classifier_pooling: 'late' is not served"),
        ("OpenAIPrivacyFilterForTokenClassification", "a cap or a sink of scores|not served"),
    ],
)
def test_what_makes_no_vectors_of_texts_is_refused_by_name(architecture, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**BASE, "architectures": [architecture], "dtype": "float32"}))
    with pytest.raises(ModelError, match=message):
        read_spec(tmp_path, describe=describe)


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        (
            "LlamaForSequenceClassification",
            {"is_causal": False},
            "is_causal: the last token of a text that is read in both",
        ),
        (
            "BertForSequenceClassification",
            {"is_decoder": True},
            "is_decoder: the first token of a text that is read in one",
        ),
    ],
)
def test_a_head_that_takes_another_token_of_a_text_is_refused(architecture, fields, message, tmp_path):
    write(tmp_path, architecture, BOTH_WAYS | LABELS)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    with pytest.raises(ModelError, match=message):
        read_spec(tmp_path, impl="transformers", describe=describe)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3Model"])
def test_a_decoder_that_reads_in_both_directions_is_the_librarys(architecture, tmp_path):
    write(tmp_path, architecture, BASE)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"is_causal": False}))
    with pytest.raises(ModelError, match="is_causal: texts are read in one direction here; set model_impl"):
        read_spec(tmp_path, describe=describe)
    assert read_spec(tmp_path, "embed", impl="transformers", describe=describe).whole_prompts


def test_the_section_of_a_wrapped_decoder_is_asked_as_well(tmp_path):
    config = json.loads((PUBLISHED / "gemma-3-27b/config.json").read_text())
    config["text_config"]["is_causal"] = False
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="is_causal: texts are read in one direction here"):
        read_spec(tmp_path)
