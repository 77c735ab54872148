"""A key that a config.json leaves out, or states as null, means what it means to transformers.

Each architecture's config is written in full, then without each of its keys: the model we would build is held against
the one the library builds. Only sizes that every published config states are refused instead, by their names.
"""

import json
import shutil
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.fields import ACTIVATIONS
from quire.worker.layers.rotary import inverse_frequencies
from quire.worker.models.build import build_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs.encoder_spec import EncoderSpec
from quire.worker.specs.registry import ARCHITECTURES, checkpoint_names, parse_spec, read_spec
from quire.worker.weights.load import match
from quire.worker.weights.parts import ModelError

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
"""The library's defaults of these are one published model's, which a checkpoint of another size never means."""
LIBRARY = {
    "Llama": transformers.LlamaConfig,
    "Mistral": transformers.MistralConfig,
    "Ministral3": transformers.Ministral3Config,
    "Qwen2": transformers.Qwen2Config,
    "Qwen3": transformers.Qwen3Config,
    "Bert": transformers.BertConfig,
    "Roberta": transformers.RobertaConfig,
    "XLMRoberta": transformers.XLMRobertaConfig,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 48,
    "rope_theta": 300.0,
    "beta_fast": 16.0,
    "beta_slow": 2.0,
    "mscale": 0.7,
    "mscale_all_dim": 0.3,
    "truncate": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "rope_theta": 300.0,
    "original_max_position_embeddings": 48,
}
ROPES = {
    "new": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "old": {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "old, with both names of the type": {"rope_theta": 5e2, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "yarn": {"rope_parameters": YARN},
    "yarn, with the original length outside too": {"rope_parameters": YARN, "original_max_position_embeddings": 96},
    "yarn, with its factor for attention": {"rope_scaling": {**YARN, "attention_factor": 0.8}, "rope_theta": 500.0},
    "llama3": {"rope_parameters": LLAMA3},
    "llama3, with the original length outside too": {"rope_scaling": LLAMA3, "original_max_position_embeddings": 96},
}
DECODER = {
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 12,
    "max_position_embeddings": 192,
    "rms_norm_eps": 1e-3,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "sliding_window": 9,
}
WINDOWS = {"use_sliding_window": True, "max_window_layers": 3}
OWN = {
    "Llama": {"attention_bias": True, "mlp_bias": True},
    "Mistral": {},
    "Ministral3": {},
    "Qwen2": WINDOWS,
    "Qwen3": {**WINDOWS, "attention_bias": True},
}
ENCODER = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
    "layer_norm_eps": 1e-3,
    "hidden_act": "gelu_new",
    "type_vocab_size": 3,
    "pad_token_id": 5,
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
}


OF_ONE_PIECE = [name for name in ARCHITECTURES if not name.endswith("ForConditionalGeneration")]
"""Those whose config.json has no sections: the others are in vision/test_vision_spec.py."""


def family(architecture):
    return max((name for name in LIBRARY if architecture.startswith(name)), key=len)


DECODERS = [name for name in OF_ONE_PIECE if family(name) in OWN]


def full_config(architecture, rope="new"):
    kind = family(architecture)
    fields = {**DECODER, **OWN[kind], **ROPES[rope]} if kind in OWN else ENCODER
    return {"architectures": [architecture], "model_type": LIBRARY[kind].model_type, "dtype": "bfloat16", **fields}


class Shapes:
    """The tensors of a library's model, as a checkpoint that is never read."""

    folder = "the library's model"

    def __init__(self, model):
        self._shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}

    def names(self):
        return tuple(self._shapes)

    def shape(self, name):
        return self._shapes[name]

    def dtype(self, name):
        return None


def library_model(config):
    """The library's model without memory; ValueError and its kind for what it refuses."""
    with torch.device("meta"):
        architecture = config["architectures"][0]
        return getattr(transformers, architecture)(
            LIBRARY[family(architecture)].from_dict(deepcopy(config))
        )  # which it alters


def built(spec):
    """Our model without memory; one of an architecture without a head has none."""
    if not spec.architecture.endswith("ForCausalLM"):
        spec = replace(spec, pooling="last")
    return build_model(spec, BuildContext(SingleGroup(), torch.device("cpu"), torch.float32, everywhere(DenseScheme())))


def assert_alike(spec, model):
    """Every tensor has its place, and what no shape shows is equal."""
    theirs = model.config
    model_of_ours = built(spec)
    match(model_of_ours, Shapes(model), checkpoint_names(model_of_ours.spec))
    assert getattr(torch, spec.dtype) == (theirs.dtype or torch.float32)
    if isinstance(spec, EncoderSpec):
        first = 0 if isinstance(theirs, transformers.BertConfig) else theirs.pad_token_id + 1
        assert spec.activation == ACTIVATIONS[theirs.hidden_act]
        assert (spec.norm_eps, spec.first_position) == (theirs.layer_norm_eps, first)
        assert spec.num_positions == theirs.max_position_embeddings
        return
    assert (spec.norm.eps, spec.tied_embeddings) == (theirs.rms_norm_eps, theirs.tie_word_embeddings)
    layers = model.model.layers if hasattr(model, "model") else model.layers
    of_all = (transformers.MistralConfig, transformers.Ministral3Config)
    everywhere = theirs.sliding_window if isinstance(theirs, of_all) else None
    windows = tuple(getattr(layer.self_attn, "sliding_window", everywhere) for layer in layers)
    assert tuple(layer.attention.window for layer in spec.layers) == windows
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    (rope,) = {layer.attention.rope for layer in spec.layers}
    for layer in spec.layers:
        assert layer.feed_forward.activation == ACTIVATIONS[theirs.hidden_act]
        assert (layer.attention.num_heads, layer.attention.head_dim) == (theirs.num_attention_heads, head_dim)
    assert rope.head_dim == head_dim
    rotary = LlamaRotaryEmbedding(config=theirs)
    assert inverse_frequencies(rope).tolist() == pytest.approx(rotary.inv_freq.tolist(), rel=1e-6)
    assert rope.attention_factor == pytest.approx(rotary.attention_scaling)
    assert rope.query_beta == theirs.rope_parameters.get("llama_4_scaling_beta", 0.0)
    assert rope.type == theirs.rope_parameters["rope_type"]
    if rope.type in ("default", "llama3"):
        assert spec.max_model_len == theirs.max_position_embeddings
    if rope.type == "dynamic":
        assert rope.original_max_position == theirs.max_position_embeddings


def compare(config):
    try:
        model = library_model(config)
    except Exception:  # what the library refuses (by one of many kinds), no checkpoint leaves out
        with pytest.raises(ModelError):
            built(parse_spec(config, {}))
        return
    assert_alike(parse_spec(config, {}), model)


ROWS = [
    (architecture, key)
    for architecture in OF_ONE_PIECE
    for key in ("", *full_config(architecture))
    if key not in ("architectures", "model_type")  # the library finds its class by the one, we by the other
]


@pytest.mark.parametrize(("architecture", "key"), ROWS)
def test_a_key_left_out_means_what_it_means_to_the_library(architecture, key):
    config = full_config(architecture)
    config.pop(key, None)
    if key == "max_window_layers":  # 28 without it: let there be layers above
        config["num_hidden_layers"] = 30
    required = (*SIZES, "max_position_embeddings") if architecture not in DECODERS else SIZES
    if key not in required:
        compare(config)
        return
    with pytest.raises(ModelError) as caught:
        parse_spec(config, {})
    assert caught.value.field == key


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2Model", "Qwen3Model"])
def test_every_spelling_of_rope_without_each_of_its_keys_means_the_same(architecture, rope):
    config = full_config(architecture, rope)
    compare(config)
    for key in ROPES[rope]:
        compare({name: value for name, value in config.items() if name != key})
    (where,) = [key for key in ROPES[rope] if isinstance(config[key], dict)]
    for key in config[where]:
        compare({**config, where: {name: value for name, value in config[where].items() if name != key}})


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [  # where the library takes it
        *((name, "num_key_value_heads", None) for name in DECODERS if not name.startswith(("Mistral", "Ministral"))),
        *((name, "sliding_window", None) for name in DECODERS),
        *((name, "head_dim", None) for name in DECODERS if not name.startswith(("Qwen", "Ministral"))),
        *((name, "rope_parameters", None) for name in DECODERS),
        *((name, "max_window_layers", 0) for name in DECODERS if name.startswith("Qwen")),
        *((name, "layer_types", None) for name in DECODERS if name.startswith("Qwen")),
        *((name, "use_sliding_window", False) for name in DECODERS if name.startswith("Qwen")),
    ],
)
def test_null_is_not_the_same_as_left_out(architecture, key, value):
    config = full_config(architecture) | {key: value}
    assert_alike(parse_spec(config, {}), library_model(config))


@pytest.mark.parametrize("key", ["max_position_embeddings", "max_window_layers"])
def test_a_null_that_means_nothing_is_refused(key):
    with pytest.raises(ModelError) as caught:
        parse_spec(full_config("Qwen2ForCausalLM") | {key: None}, {})
    assert caught.value.field == key


@pytest.mark.parametrize("stated", ["absent", None, 5, [5, 6]])
@pytest.mark.parametrize("generation", ["no file", "absent", None, 7, [7, 8]])
def test_end_tokens_are_those_the_library_generates_with(stated, generation, tiny_checkpoint, tmp_path):
    folder = rewritten(tiny_checkpoint(), tmp_path, eos_token_id=stated)
    (folder / "generation_config.json").unlink()
    if generation != "no file":
        said = {} if generation == "absent" else {"eos_token_id": generation}
        (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.5, **said}))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id
    if generation in ("absent", None):  # config.json's are taken then: without any, no answer would ever end
        assert theirs is None
        theirs = None if stated == "absent" else stated
    expected = () if theirs is None else tuple(theirs) if isinstance(theirs, list) else (theirs,)
    assert read_spec(folder).eos_token_ids == expected


@pytest.mark.parametrize("shards", ["1GB", "100KB"])
@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
def test_a_dtype_left_out_is_that_of_the_weights(stored, shards, tiny_checkpoint, tmp_path):
    folder = rewritten(tiny_checkpoint(dtype=stored, max_shard_size=shards), tmp_path, dtype="absent")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).dtype
    assert (read_spec(folder).dtype, theirs) == (stored, getattr(torch, stored))
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    assert read_spec(folder).dtype == "float32", "dummy weights need no files"


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("MistralForCausalLM", {}),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 1}),
        ("Qwen3ForCausalLM", {"use_sliding_window": True, "max_window_layers": 0, "head_dim": 16}),
    ],
)
def test_a_prompt_past_the_window_that_was_left_out_gives_the_tokens_of_transformers(
    architecture, fields, tiny_checkpoint, tmp_path, load, greedy, reference
):
    """The window left out is of 4096 tokens: it changes what follows a prompt of 4600."""
    made = tiny_checkpoint(architecture, max_position_embeddings=8192, **fields)
    folder = rewritten(made, tmp_path / "left out", sliding_window="absent")
    without = rewritten(made, tmp_path / "none", sliding_window=None)
    prompt = torch.randint(0, 320, (4600,), generator=torch.Generator().manual_seed(5)).tolist()
    ((tokens, logprobs),) = reference(folder, [prompt], 6)
    (row,) = greedy(load(folder), num_blocks=600).generate([prompt], 6)
    assert row.tokens == tokens
    assert row.logprobs == pytest.approx(logprobs, abs=1e-4)
    (other,) = greedy(load(without), num_blocks=600).generate([prompt], 6)
    assert other.logprobs != pytest.approx(logprobs, abs=1e-4), "the window made no difference: this proves nothing"


def rewritten(folder, copy, **fields):
    """A copy of a checkpoint whose config.json states other values, or leaves out what is "absent"."""
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    config = json.loads((copy / "config.json").read_text()) | fields
    stated = {name: value for name, value in config.items() if value != "absent"}
    (copy / "config.json").write_text(json.dumps(stated))
    return copy
