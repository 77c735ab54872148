"""A key that a config.json leaves out, or states as null, means what it means to transformers.

Each architecture's config is written in full, then without each of its keys: the model we would build is held against
the one the library builds. Only sizes that every published config states are refused instead, by their names.
"""

import json
import re
import shutil
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import transformers

from quire.kernels.attention.window import Chunk
from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.fields import ACTIVATIONS
from quire.worker.layers.rotary import inverse_frequencies
from quire.worker.models.build import build_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs.architectures import ARCHITECTURES
from quire.worker.specs.encoder_spec import EncoderSpec
from quire.worker.specs.registry import checkpoint_names, parse_spec, read_spec
from quire.worker.specs.spec import ExpertsSpec
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
    "Gemma": transformers.GemmaConfig,
    "Gemma2": transformers.Gemma2Config,
    "Gemma3": transformers.Gemma3TextConfig,
    "Gemma3n": transformers.Gemma3nTextConfig,
    "Gemma4": transformers.Gemma4TextConfig,
    "Gemma4Unified": transformers.Gemma4UnifiedTextConfig,
    "Phi3": transformers.Phi3Config,
    "Glm4": transformers.Glm4Config,
    "Olmo2": transformers.Olmo2Config,
    "Olmo3": transformers.Olmo3Config,
    "Exaone4": transformers.Exaone4Config,
    "Cohere": transformers.CohereConfig,
    "Cohere2": transformers.Cohere2Config,
    "SmolLM3": transformers.SmolLM3Config,
    "Granite": transformers.GraniteConfig,
    "SeedOss": transformers.SeedOssConfig,
    "Ernie4_5": transformers.Ernie4_5Config,
    "Mixtral": transformers.MixtralConfig,
    "Qwen2Moe": transformers.Qwen2MoeConfig,
    "Qwen3Moe": transformers.Qwen3MoeConfig,
    "Olmoe": transformers.OlmoeConfig,
    "Glm4Moe": transformers.Glm4MoeConfig,
    "MiniMaxM2": transformers.MiniMaxM2Config,
    "Ernie4_5_Moe": transformers.Ernie4_5_MoeConfig,
    "Dots1": transformers.Dots1Config,
    "Llama4": transformers.Llama4TextConfig,
    "GptOss": transformers.GptOssConfig,
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
GEMMA = {
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 24,
    "final_logit_softcapping": 5.0,
    "attention_bias": True,
}
GEMMA4 = {
    "hidden_activation": "gelu_pytorch_tanh",
    "final_logit_softcapping": 5.0,
    "attention_bias": True,
    "attention_k_eq_v": True,
    "global_head_dim": 24,
    "num_global_key_value_heads": 2,
    "num_hidden_layers": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 4,
}
PER_LAYER = {
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 300,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
}
GEMMA3N = {
    "hidden_activation": "gelu_pytorch_tanh",
    "final_logit_softcapping": 5.0,
    "attention_bias": True,
    "num_hidden_layers": 12,
    "layer_types": ["sliding_attention", "full_attention"] * 6,
    "rope_theta": 500.0,
    "rope_local_base_freq": 50.0,
    "altup_num_inputs": 3,
    "altup_active_idx": 1,
    "altup_correct_scale": False,
    "laurel_rank": 10,
    "activation_sparsity_pattern": [0.7] * 5 + [0.0] * 7,
}
SPARSE = {
    "num_experts": 10,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "decoder_sparse_step": 2,
    "mlp_only_layers": [3],
}
V3 = {
    "n_routed_experts": 40,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": False,
    "first_k_dense_replace": 2,
    "n_group": 4,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
}
OWN = {
    "Llama": {"attention_bias": True, "mlp_bias": True},
    "Mistral": {},
    "Ministral3": {},
    "Qwen2": WINDOWS,
    "Qwen3": {**WINDOWS, "attention_bias": True},
    "Gemma": {"attention_bias": True},
    "Gemma2": {**GEMMA, "attn_logit_softcapping": 7.0},
    "Gemma3": {**GEMMA, "sliding_window_pattern": 3, "rope_theta": 500.0, "rope_local_base_freq": 50.0},
    "Gemma3n": {**GEMMA3N, **PER_LAYER},
    "Gemma4": {**GEMMA4, **PER_LAYER},
    "Gemma4Unified": GEMMA4,
    "Phi3": {"original_max_position_embeddings": 96},
    "Glm4": {"attention_bias": False},
    "Olmo2": {"attention_bias": True},
    "Olmo3": {
        "attention_bias": True,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        "rope_theta": 300.0,
    },
    "Exaone4": {"sliding_window_pattern": 3},
    "Cohere": {"layer_norm_eps": 1e-3, "logit_scale": 0.5, "attention_bias": True},
    "Cohere2": {"layer_norm_eps": 1e-3, "logit_scale": 0.5, "sliding_window_pattern": 3},
    "SmolLM3": {"no_rope_layer_interval": 3, "use_sliding_window": True, "attention_bias": True, "mlp_bias": True},
    "Granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.25,
        "attention_multiplier": 0.1,
        "logits_scaling": 4.0,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "SeedOss": {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
    "Ernie4_5": {"use_bias": True},
    "Mixtral": {"num_local_experts": 7, "num_experts_per_tok": 3},
    "Qwen2Moe": {**WINDOWS, **SPARSE, "shared_expert_intermediate_size": 40, "qkv_bias": False},
    "Qwen3Moe": {**WINDOWS, **SPARSE, "attention_bias": True},
    "Olmoe": {
        "attention_bias": True,
        "head_dim": 8,
        "num_experts": 10,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
    },
    "Glm4Moe": {**V3, "attention_bias": True, "use_qk_norm": True, "partial_rotary_factor": 0.5},
    "MiniMaxM2": {"num_local_experts": 10, "num_experts_per_tok": 3},
    "Ernie4_5_Moe": {
        "moe_num_experts": 10,
        "moe_k": 3,
        "moe_intermediate_size": 24,
        "moe_num_shared_experts": 3,
        "moe_layer_start_index": 0,
        "moe_layer_end_index": 2,
        "moe_layer_interval": 2,
    },
    "Dots1": {**V3, "attention_bias": True, "max_window_layers": 2},
    "Llama4": {
        "intermediate_size_mlp": 40,
        "num_local_experts": 3,
        "interleave_moe_layer_step": 2,
        "no_rope_layer_interval": 3,
        "attention_chunk_size": 24,
        "floor_scale": 48,
        "attn_scale": 0.3,
        "attn_temperature_tuning": False,
        "use_qk_norm": False,
        "attention_bias": True,
    },
    "GptOss": {
        "attention_bias": False,
        "num_local_experts": 7,
        "num_experts_per_tok": 3,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
    },
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
FIRST = [name for name in DECODERS if re.match("Llama(?!4)|Mistral|Ministral|Qwen", name)]
"""Those whose keys may be null, and mean it."""


def full_config(architecture, rope="new"):
    kind = family(architecture)
    fields = {**DECODER, "pad_token_id": None, **OWN[kind], **ROPES[rope]} if kind in OWN else ENCODER
    if kind in ("Gemma3", "Gemma3n", "Gemma4", "Gemma4Unified", "Olmo3"):  # whose sections are those of kinds of layers
        del fields["rope_parameters"]
    return {"architectures": [architecture], "model_type": LIBRARY[kind].model_type, "dtype": "bfloat16", **fields}


EVERYWHERE = (
    transformers.MistralConfig,
    transformers.Ministral3Config,
    transformers.Phi3Config,
    transformers.MixtralConfig,
)
"""Those whose window is that of every layer."""


def apart(name, shape, held):
    """A tensor's name and shape, or those of each expert's, as the library saves what it holds in one."""
    path, _, last = name.rpartition(".")
    if not path.endswith(".experts") or "feed_forward" in path or f"{path}.down_proj_bias" in held:  # together
        return [(name, shape)]
    count, *matrix = shape
    parts = {"down_proj": tuple(matrix)}
    if last == "gate_up_proj":
        parts = dict.fromkeys(("gate_proj", "up_proj"), (matrix[0] // 2, matrix[1]))
    return [(f"{path}.{e}.{part}.weight", size) for e in range(count) for part, size in parts.items()]


class Shapes:
    """The tensors of a library's model, as a checkpoint that is never read."""

    folder = "the library's model"

    def __init__(self, model):
        held = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        self._shapes = {name: shape for one in held.items() for name, shape in apart(*one, held)}

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
    eps = theirs.layer_norm_eps if spec.norm.kind == "layer" else theirs.rms_norm_eps
    assert (spec.norm.eps, spec.tied_embeddings) == (eps, theirs.tie_word_embeddings)
    base = model.model if hasattr(model, "model") else model
    for number, (layer, one) in enumerate(zip(spec.layers, base.layers, strict=True)):
        assert_layers_alike(layer, one.self_attn, number, base)
        if isinstance(layer.feed_forward, ExpertsSpec):
            mixed = one.feed_forward if hasattr(one, "feed_forward") else one.mlp
            assert_routed_alike(layer.feed_forward, mixed.router if hasattr(mixed, "router") else mixed.gate)
    assert spec.logit_cap == getattr(theirs, "final_logit_softcapping", None)
    assert spec.logit_scale == getattr(theirs, "logit_scale", 1 / getattr(theirs, "logits_scaling", 1.0))
    assert spec.residual_scale == getattr(theirs, "residual_multiplier", 1.0)
    scale = theirs.hidden_size**0.5 if spec.norm.is_wide else 1.0
    assert spec.embedding_scale == getattr(theirs, "embedding_multiplier", scale)
    if spec.streams is not None:
        (altup,) = {(one.altup.config.altup_active_idx, one.altup.config.altup_correct_scale) for one in base.layers}
        assert (spec.streams.active, spec.streams.scaled) == altup
        sparsity = [one.mlp.activation_sparsity for one in base.layers]
        assert [layer.feed_forward.sparsity for layer in spec.layers] == sparsity
    if {layer.attention.rope.type for layer in spec.layers} <= {"default", "llama3", "none"}:
        assert spec.max_model_len == theirs.max_position_embeddings


def assert_routed_alike(experts, gate):
    renormalizes = getattr(gate, "norm_topk_prob", "Llama4" not in type(gate).__name__)
    assert (experts.top_k, experts.renormalize) == (gate.top_k, renormalizes)
    assert experts.scale == getattr(gate, "routed_scaling_factor", 1.0)
    assert (experts.num_groups, experts.top_groups) == (getattr(gate, "num_group", 1), getattr(gate, "topk_group", 1))


def assert_layers_alike(layer, theirs, number, model):
    """A layer of ours and the attention of the library's."""
    config, attention = theirs.config, layer.attention
    everywhere = config.sliding_window if isinstance(config, EVERYWHERE) else None
    window = getattr(theirs, "sliding_window", everywhere) if getattr(theirs, "is_sliding", True) else None
    if isinstance(config, transformers.Llama4TextConfig):
        window = Chunk(config.attention_chunk_size) if config.layer_types[number] == "chunked_attention" else None
        beta = 0.0 if theirs.use_rope or not config.attn_temperature_tuning else config.attn_scale
        grows_every = config.floor_scale if beta else attention.rope.original_max_position
        assert (attention.rope.query_beta, attention.rope.original_max_position) == (beta, grows_every)
        assert (attention.qk_norm == "plain") == hasattr(theirs, "qk_norm")
    assert (attention.window, attention.scale) == (window, theirs.scaling)
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    stated = getattr(theirs, "head_dim", None) or getattr(config, "head_dim", None)
    head_dim = stated or config.hidden_size // config.num_attention_heads
    clamped = family(type(model).__name__) == "GptOss"
    assert layer.feed_forward.activation == ("swigluoai" if clamped else ACTIVATIONS[activation])
    assert (attention.num_heads, attention.head_dim) == (config.num_attention_heads, head_dim)
    assert attention.soft_cap == getattr(config, "attn_logit_softcapping", None)
    rope = attention.rope
    if family(type(model).__name__) in ("Exaone4", "Cohere2"):
        assert (rope.type == "none") == (window is None and config.sliding_window is not None)
    elif hasattr(theirs, "use_rope"):
        assert (rope.type == "none") == (not theirs.use_rope)
    else:
        assert rope.type != "none"
    if rope.type == "none":
        return
    rotary, stated, of_kind = type(model.rotary_emb)(config=config), config.rope_parameters, ""
    if "sliding_attention" in stated:
        kind = config.layer_types[number]
        stated, of_kind = stated[kind], f"{kind}_"
    frequencies = getattr(rotary, f"{of_kind}inv_freq")
    scaling = getattr(rotary, f"{of_kind}attention_scaling")
    assert rope.head_dim == 2 * len(frequencies)
    assert inverse_frequencies(rope).tolist() == pytest.approx(frequencies.tolist(), rel=1e-6)
    assert rope.attention_factor == pytest.approx(scaling)
    assert rope.query_beta == stated.get("llama_4_scaling_beta", 0.0)
    assert rope.type == stated["rope_type"]
    if rope.type == "dynamic":
        assert rope.original_max_position == config.max_position_embeddings


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
    # the library finds its class by one, we by the other; ids of padding are no token of so small a vocabulary
    if key not in ("architectures", "model_type") and (key != "pad_token_id" or architecture not in DECODERS)
]


@pytest.mark.parametrize(("architecture", "key"), ROWS)
def test_a_key_left_out_means_what_it_means_to_the_library(architecture, key):
    config = full_config(architecture)
    config.pop(key, None)
    if key == "max_window_layers":  # 28 without it: let there be layers above
        config["num_hidden_layers"] = 30
    required = (*SIZES, "max_position_embeddings") if architecture not in DECODERS else SIZES
    if architecture == "Dots1ForCausalLM":  # None of it, to the library
        required = (*required, "num_experts_per_tok")
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
        *(
            (name, "num_key_value_heads", None)
            for name in FIRST
            if "Moe" not in name and not name.startswith(("Mistral", "Ministral"))
        ),
        *((name, "sliding_window", None) for name in FIRST),
        *((name, "head_dim", None) for name in FIRST if not name.startswith(("Qwen", "Ministral"))),
        *((name, "rope_parameters", None) for name in FIRST),
        *((name, "max_window_layers", 0) for name in FIRST if name.startswith("Qwen")),
        *((name, "layer_types", None) for name in FIRST if name.startswith("Qwen")),
        *((name, "use_sliding_window", False) for name in FIRST if name.startswith("Qwen")),
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
