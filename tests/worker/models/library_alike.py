"""A model that we would build, held against the one that the library builds of the same config."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import transformers
from full_configs import LIBRARY, family

from quire.kernels.attention.window import Chunk
from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.fields import ACTIVATIONS
from quire.worker.layers.rotary import inverse_frequencies
from quire.worker.models.build import build_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs.encoder_spec import EncoderSpec
from quire.worker.specs.registry import checkpoint_names, parse_spec
from quire.worker.specs.spec import ExpertsSpec
from quire.worker.weights.load import match
from quire.worker.weights.parts import ModelError

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
        spec = replace(spec, pooling=("last",))
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
    assert_ropes_alike(rope, config, type(model.rotary_emb), number)


def assert_ropes_alike(rope, config, kind_of_rotary, number):
    """A layer's rope, and that of the library's config."""
    rotary, stated, of_kind = kind_of_rotary(config=config), config.rope_parameters, ""
    if "sliding_attention" in stated:
        kind = config.layer_types[number]
        stated, of_kind = stated[kind], f"{kind}_"
    frequencies = getattr(rotary, f"{of_kind}inv_freq")
    scaling = getattr(rotary, f"{of_kind}attention_scaling")
    if rope.type == "longrope":  # which begins with those of short contexts
        rope = replace(rope, factors=rope.short_factors)
    assert rope.head_dim == 2 * len(frequencies)
    assert inverse_frequencies(rope).tolist() == pytest.approx(frequencies.tolist(), rel=1e-6)
    assert rope.attention_factor == pytest.approx(scaling)
    if isinstance(config, transformers.Ministral3Config):
        assert rope.query_beta == (stated.get("llama_4_scaling_beta") or 0.0)
        if rope.query_beta:
            assert rope.queries_grow_every == stated["original_max_position_embeddings"]
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
