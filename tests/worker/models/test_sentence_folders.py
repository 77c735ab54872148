"""Folders that sentence-transformers 6.2 saved: its vectors and scores of its own token ids, whatever the stages."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from sentence import saved

from quire.frontend.request.sentence_settings import sentence_settings
from quire.frontend.request.vectors.activation import activated
from quire.worker.config import WorkerConfig
from quire.worker.inspect import inspect
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.registry import read_spec
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.parts import ModelError

CUT = {
    "max_seq_length": 9,
    "max_seq_length from the end": 9,
    "max_seq_length of a prompt": 9,
    "max_seq_length of chats": 35,
    "older max_seq_length": 7,
    "arguments of the tokenizer": 8,
    "arguments of a text": 6,
    "scores: max_length": 14,
}
"""Folders that state a longest text, in tokens."""
EVERYTHING = "bert: mean + max: LayerNorm, Dense"


@pytest.fixture
def folder(tmp_path):
    """`folder(name)`: a saved one, to be changed."""
    return lambda name: saved.write(name, tmp_path)


def vectors(driver, prompts, chunk=1 << 30):
    """What the worker makes of prompts that run side by side, in pieces."""
    left = {slot: len(prompt) for slot, prompt in enumerate(prompts)}
    for slot, prompt in enumerate(prompts):
        driver.scribe.admit(slot, prompt)
    found = {}
    while left:
        rows = [(slot, min(chunk, count)) for slot, count in left.items()]
        result = driver.run(rows)
        left = {slot: left[slot] - count for slot, count in rows if left[slot] > count}
        ended = [slot for slot, _ in sorted(rows, key=lambda row: row[1] > 1) if slot not in left]
        found |= dict(zip(ended, result.embeddings, strict=True))
    return [np.frombuffer(found[slot], np.float32) for slot in range(len(prompts))]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", saved.names("vectors"))
def test_the_vectors_are_those_of_sentence_transformers(name, folder, started):
    made, wanted = folder(name), saved.answers(name)
    driver, settings = started(made), sentence_settings(made)
    assert driver.facts.max_model_len == CUT.get(name, 48)
    found = vectors(driver, wanted["ids"])
    assert {len(vector) for vector in found} == {driver.facts.embedding_size}
    np.testing.assert_allclose([settings.finished(one) for one in found], wanted["vectors"], atol=1e-5)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [name for name in saved.names("vectors") if name.startswith("llama:")])
def test_a_decoders_prompt_may_come_in_chunks(name, folder, started):
    driver, wanted = started(folder(name)), saved.answers(name)
    longest = max(wanted["ids"], key=len)
    for slots in ([longest] * 2, [longest]):  # a slot's next prompt does not begin with what the last one left
        whole, *_ = vectors(driver, slots, chunk=3)
        for slot in range(len(slots)):
            driver.scribe.release(slot)
        (again,) = vectors(driver, [longest])
        driver.scribe.release(0)
        np.testing.assert_allclose(whole, again, atol=1e-5)


@pytest.mark.parametrize("name", saved.names("scores"))
def test_the_scores_are_those_of_its_cross_encoders(name, folder, started):
    made, wanted = folder(name), saved.answers(name)
    driver, end = started(made), 3
    assert (driver.facts.task, driver.facts.max_model_len) == ("score", CUT.get(name, 48))
    for slot, ids in enumerate(wanted["ids"]):
        # BERT's tokens of the second text are of type 1: those behind the first [SEP]
        driver.scribe.admit(slot, ids, second_text=ids.index(end) + 1 if end in ids else 0)
    result = driver.run([(slot, len(ids)) for slot, ids in enumerate(wanted["ids"])])
    raw = np.array([np.frombuffer(one, np.float32)[0] for one in result.embeddings])
    np.testing.assert_allclose(raw, wanted["raw"], atol=1e-5)
    ours = [activated(raw[index : index + 1], driver.facts.head.activation)[0] for index in range(len(raw))]
    np.testing.assert_allclose(ours, wanted["scores"], atol=1e-5)


def test_a_context_that_is_asked_for_may_be_longer_than_texts_are_cut_to(folder, started, settings):
    made = folder("max_seq_length")
    assert started(made, max_model_len=30).facts.max_model_len == 30
    assert started(made, max_model_len=5).facts.max_model_len == 5
    _, refusals = fit(WorkerConfig(**{**settings, "model": str(made), "max_model_len": 49}), Place(False, None))
    assert "more than the model's context length 48" in refusals[0]


def test_two_ranks_give_the_vectors_of_one(folder, group, scribe, settings):
    wanted = saved.answers(EVERYTHING)
    ranks = group(2, model=str(folder(EVERYTHING)))
    assert ranks.join()[0].facts.embedding_size == 5
    writer = scribe(settings["block_size"])
    for slot, ids in enumerate(wanted["ids"]):
        writer.admit(slot, ids)
    result = ranks.step(writer.plan([(slot, len(ids)) for slot, ids in enumerate(wanted["ids"])])[1])
    ours = [np.frombuffer(one, np.float32) for one in result.embeddings]
    np.testing.assert_allclose(ours, wanted["vectors"], atol=1e-5)
    assert ranks.stop() == [0, 0]


def test_the_weights_of_stages_are_counted_and_may_be_dummies(folder, started, settings):
    made = folder(EVERYTHING)
    stored = sum(array.size for path in made.glob("[2-9]_*/*.safetensors") for array in load_file(path).values())
    assert sum(stage.num_elements for stage in read_spec(made).stages) == stored > 0
    assert inspect(WorkerConfig(**{**settings, "model": str(made)}))[1] == []
    for path in made.glob("*/*.safetensors"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"2_LayerNorm: no \*\.safetensors"):
        started(made)
    _, (refusal,) = inspect(WorkerConfig(**{**settings, "model": str(made)}))
    assert "2_LayerNorm: no *.safetensors" in refusal
    assert np.isfinite(vectors(started(made, load_format="dummy"), saved.answers(EVERYTHING)["ids"])).all()


def change(path, **fields):
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | fields))


STAGE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.base.modules.dense.Dense"}


@pytest.mark.parametrize(
    ("file", "fields", "text"),
    [
        ("2_Dense/config.json", {"activation_function": "mine.Tanh"}, "activation_function: 'mine.Tanh' is not supp"),
        (
            "2_Dense/config.json",
            {"activation_function": "torch.nn.Softmax"},
            "activation_function: .* supported of torch.nn",
        ),
        ("2_Dense/config.json", {"in_features": 17}, "in_features: 2_Dense takes vectors of 17 numbers, .* have 16"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "module_input_name: 2_Dense has 'token_emb"),
        ("2_Dense/config.json", {"module_output_name": "scores"}, "module_output_name: 2_Dense has 'scores'"),
        ("2_Dense/config.json", {"out_features": 1 << 40}, "out_features: must be at most"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "pooling_mode: median is not supported"),
        ("sentence_bert_config.json", {"max_seq_length": "long"}, "max_seq_length: must be a number of tokens"),
        (
            "sentence_bert_config.json",
            {"config_args": {"trust_remote_code": True, "num_hidden_layers": 3}},
            "config_args: changes 'num_hidden_layers' of config.json",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_field(file, fields, text, folder):
    made = folder("bert: mean: Dense")
    change(made / file, **fields)
    with pytest.raises(ModelError, match=rf"^{text}"):
        read_spec(made)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({0: {"path": "0_Transformer"}}, "the model lies in '0_Transformer'"),
        ({1: {"type": "mine.Pooling"}}, "stage 'mine.Pooling' is code of the model's own"),
        (
            {1: {"type": "sentence_transformers.models.CNN"}},
            "stage 'CNN' is not supported; supported: Trans",
        ),
        ({1: {"type": "sentence_transformers.models.Dense"}}, "has the stages Transformer, Dense, Dense; supported:"),
        ({2: {"path": "../2_Dense"}}, "the path '../2_Dense' of .* is not a folder"),
        ({2: {"path": ".."}}, "the path '..' of .* is not a folder"),
        ({2: {"path": "x" * 300}}, r"the path 'x+\.\.\. of .* is not a folder"),
    ],
)
def test_stages_in_another_order_or_of_other_code_are_refused(changes, text, folder):
    made = folder("bert: mean: Dense")
    stages = json.loads((made / "modules.json").read_text())
    for index, fields in changes.items():
        stages[index] |= fields
    (made / "modules.json").write_text(json.dumps(stages))
    with pytest.raises(ModelError, match=rf"^modules\.json: {text}"):
        read_spec(made)


def test_prompts_that_are_left_out_of_the_pooling_are_refused(folder):
    made = folder("default prompt")
    change(made / "1_Pooling" / "config.json", include_prompt=False)
    with pytest.raises(ModelError, match="include_prompt: 1_Pooling leaves prompts out"):
        read_spec(made)
    (made / "config_sentence_transformers.json").unlink()
    assert read_spec(made).pooling == ("mean",)


def test_stages_that_score_make_no_vectors_and_one_number(folder):
    made = folder("scores: stages of bert")
    assert read_spec(made, "score") == read_spec(made, "pooling") == read_spec(made)
    for task, text in (("embed", "task: its stages score pairs"), ("classify", "has no head for classify")):
        with pytest.raises(ModelError, match=text):
            read_spec(made, task)
    change(made / "4_Dense" / "config.json", module_output_name="sentence_embedding")
    with pytest.raises(ModelError, match=r"module_output_name: 4_Dense has 'sentence_embedding', .* for scores alone"):
        read_spec(made)
    change(made / "4_Dense" / "config.json", module_output_name="scores", out_features=2)
    with pytest.raises(ModelError, match="last stage must be a Dense of one number"):
        read_spec(made)


def test_a_cross_encoder_with_more_stages_or_another_activation_is_refused(folder):
    made = folder("scores")
    change(made / "config_sentence_transformers.json", activation_fn="torch.nn.modules.activation.Tanh")
    with pytest.raises(ModelError, match=r"activation_fn: 'torch\.nn\.modules\.activation\.Tanh' is not supported"):
        read_spec(made)
    change(made / "config_sentence_transformers.json", activation_fn="mine.Identity")
    with pytest.raises(ModelError, match=r"activation_fn: 'mine\.Identity' is not supported"):
        read_spec(made)
    change(made / "config_sentence_transformers.json", activation_fn=None)
    assert read_spec(made).head.activation == "sigmoid"
    with pytest.raises(ModelError, match=r"has the stages Transformer; .* a cross-encoder is served with task score"):
        read_spec(made, "embed")
    stages = json.loads((made / "modules.json").read_text())
    (made / "modules.json").write_text(json.dumps([*stages, STAGE]))
    with pytest.raises(ModelError, match="stage 'Dense' behind a head of labels is not supported"):
        read_spec(made)
