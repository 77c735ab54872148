"""A GGUF file of experts, all of a layer in one tensor: the tokens of transformers with the weights that it means."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[2]))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parent))

import loaded_experts
from gguf_bytes import LLAMA, gguf
from loaded_experts import check_sum, check_tokens, load

from quire.deploy.gguf.config import config_of
from quire.deploy.gguf.folder import make_folder
from quire.worker.config import WorkerConfig
from quire.worker.quant.form import Groups
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.quantized import read_plan
from quire.worker.weights.gguf.files import read_model
from quire.worker.weights.parts import ModelError

CONFIG = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "num_hidden_layers": 2,
    "tie_word_embeddings": False,
    "head_dim": 16,
}
NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp",
    **{f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"}, "self_attn.o_proj": "attn_output",
    **{f"self_attn.{name}_norm": f"attn_{name}_norm" for name in "qk"},
}  # fmt: skip
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
EXPERT = re.compile(
    r"(?P<layer>model\.layers\.(?P<n>\d+)\.mlp\.experts\.)(?P<e>\d+)\.(?P<part>gate|up|down)_proj\.weight"
)
F32, Q8_0, Q4_0 = 0, 8, 2


def blocks(weight, kind):
    """The bytes of a matrix in blocks of 32, and the weight that they mean."""
    parts, most = weight.unflatten(-1, (-1, 32)), {Q8_0: 127, Q4_0: 7}[kind]
    scale = (parts.abs().amax(-1, keepdim=True) / most).half()
    codes = (parts / scale.float()).round().clamp(-most, most)
    if kind == Q8_0:
        raw = codes.to(torch.int8).view(torch.uint8)
    else:
        nibbles = (codes + 8).to(torch.uint8)
        raw = nibbles[..., :16] | nibbles[..., 16:] << 4
    return torch.cat((scale.view(torch.uint8), raw), -1).numpy().tobytes(), (codes * scale.float()).flatten(-2)


@pytest.fixture(scope="module")
def made(tiny_checkpoint, tmp_path_factory):
    """The directory that is made of the file, and the dense checkpoint of the same meaning."""
    source, target = tiny_checkpoint("Qwen3MoeForCausalLM", **CONFIG), tmp_path_factory.mktemp("gguf")
    config, held = json.loads((source / "config.json").read_text()), load_file(source / "model.safetensors")
    meant, tensors = dict(held), {}
    for name, tensor in held.items():
        if (match := EXPERT.fullmatch(name)) is None:
            tensors[_stored(name)] = (F32, tuple(tensor.shape), tensor.float().numpy().tobytes())
        elif match["e"] == "0":
            kind = Q8_0 if match["part"] == "down" else Q4_0
            names = [f"{match['layer']}{e}.{match['part']}_proj.weight" for e in range(5)]
            weight = torch.stack([held[one].float() for one in names])
            raw, found = blocks(weight, kind)
            tensors[f"blk.{match['n']}.ffn_{match['part']}_exps.weight"] = (kind, tuple(weight.shape), raw)
            meant |= {one: own.contiguous() for one, own in zip(names, found, strict=True)}
    (target / "model.gguf").write_bytes(gguf(metadata({**config, **CONFIG}), tensors))
    make_folder(target / "model.gguf", target / "made", with_tokenizer=False)
    shutil.copytree(source, target / "meant")
    save_file(meant, target / "meant" / "model.safetensors")
    return target / "made", target / "meant"


def _stored(name):
    module, _, tensor = name.rpartition(".")
    if module in TOP:
        return f"{TOP[module]}.{tensor}"
    _, _, n, inside = module.split(".", 3)
    return f"blk.{n}.{NAMES[inside]}.{tensor}"


def metadata(config):
    sizes = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": 0,  # as in files of Qwen3-Coder
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": float(config["rope_parameters"]["rope_theta"]),
    }
    others = {key: value for key, value in LLAMA.items() if key.startswith("tokenizer.")}
    return {"general.architecture": "qwen3moe", **{f"qwen3moe.{key}": value for key, value in sizes.items()}, **others}


def test_tokens_are_those_of_transformers_with_the_weights_that_are_meant(made, greedy, reference, prompts):
    folder, meant = made
    decoder = load(folder)
    plan = read_plan(loaded_experts.config_of(folder), decoder.spec)
    experts = {path: form for path, form in plan.forms.items() if ".experts." in path}
    assert len(experts) == 2 * 5 * 3
    assert {path.endswith(".down"): form for path, form in experts.items()} == {
        True: Groups(8, 32),
        False: Groups(4, 32),
    }
    some = prompts[::5]
    check_tokens(greedy(decoder), reference(meant, some, 12), some, (1 << 30,))


@pytest.mark.parametrize("dealt", [False, True])
def test_the_shares_of_two_ranks_add_up(made, dealt):
    """Of the inner axis, or of whole experts."""
    check_sum(load(made[0]), [load(made[0], rank, 2, dealt) for rank in range(2)], 5)


def test_experts_of_all_tokens_are_refused_by_their_key(made):
    model = read_model(made[0])
    shared = {"qwen3moe.expert_shared_feed_forward_length": 64}
    with pytest.raises(ModelError, match=r"shared_feed_forward_length: is 64: experts of all tokens .* choose another"):
        config_of(replace(model, metadata={**model.metadata, **shared}))


def test_a_gpu_takes_it(made):
    assert fit(WorkerConfig(model=str(made[0])), Place(True, None))[1] == []
