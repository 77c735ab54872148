"""Will it run? The answer is read from config.json alone, for every architecture that the installed library knows."""

import json
import random
import sys
from copy import deepcopy
from pathlib import Path

import pytest
from parts import forked

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from full_configs import OF_ONE_PIECE, full_config

from quire.deploy.commands import start_plan
from quire.worker.config import WorkerConfig
from quire.worker.device.machine import bf16_products
from quire.worker.specs.architectures import ARCHITECTURES
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place

pytestmark = pytest.mark.usefixtures("described_here")

GIB = 1 << 30
LARGE = Place(True, 48 * GIB)
CPU = Place(False, 64 * GIB, "AMX")
PUBLISHED = Path(__file__).parents[2] / "published"
EIGHT_B = json.loads((PUBLISHED / "Llama-3.1-8B/config.json").read_text())
YARN = {"rope_type": "yarn", "factor": 4.0}
WORDS = {str: "strange", int: -1, float: 0.0, bool: None, list: {}, dict: [], type(None): 7}


def judged(folder: Path, config: dict, place: Place = LARGE, **fields):
    (folder / "config.json").write_text(json.dumps(config, default=str))
    return fit(WorkerConfig(model=str(folder), **fields), place)


DEFAULTS = """
import json, sys, huggingface_hub.constants, transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
huggingface_hub.constants.HF_HUB_OFFLINE = True  # some classes would ask the hub
for kind in list(CONFIG_MAPPING_NAMES)[:: int(sys.argv[1])]:
    try:
        config = transformers.AutoConfig.for_model(kind).to_dict()
    except Exception:  # those that have no defaults, or need packages that are not here
        continue
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind, f"{kind}Model")
    names = [names] if isinstance(names, str) else list(names)
    print(json.dumps({**config, "model_type": kind, "architectures": names}, default=str))
"""


def configs(stride: int) -> list[dict]:
    """Default configurations, as the library writes them, of one kind in `stride`."""
    command, imports = [sys.executable, "-c", DEFAULTS, str(stride)], ("transformers.models.auto.modeling_auto",)
    done = forked.run(command, capture_output=True, text=True, check=True, imports=imports)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.thorough), 16])
def test_every_architecture_of_the_library_gets_an_answer_and_no_traceback(tmp_path: Path, stride: int) -> None:
    known = configs(stride)
    assert len(known) > 400 // stride
    for config in known:
        needs, refusals = judged(tmp_path, config, model_impl="quire")
        is_known = config["architectures"][0] in ARCHITECTURES
        assert (needs is None) <= bool(refusals), config["model_type"]
        assert is_known or any("is not supported" in refusal for refusal in refusals), config["model_type"]
        for architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM", "BertModel"):
            needs, refusals = judged(tmp_path, {**config, "architectures": [architecture]})
            assert needs is not None or refusals, config["model_type"]
            assert all("\n" not in refusal for refusal in refusals)


ODD = [None, 0, 1, -1, 3, 7, 64, 0.5, -0.5, float("nan"), float("inf"), 10**30, 1e300, True, False, "", "x", "yarn"]
ODD += [[], [0], [1, 2], [None], [{}], ["full_attention"], {}, {"a": 1}, {"rope_type": "yarn"}, {"full_attention": {}}]
"""Values that some field may have, and most may not."""
OFTEN_LEFT_OUT = (
    *("rope_scaling", "rope_parameters", "partial_rotary_factor", "head_dim", "layer_types", "sliding_window"),
    *("decoder_sparse_step", "mlp_only_layers", "first_k_dense_replace", "moe_layers", "moe_layer_start_index"),
    *("quantization_config", "text_config", "vision_config", "num_labels", "id2label", "classifier_from_token"),
    *("eos_token_id", "pad_token_id", "dtype", "is_causal", "architectures", "model_type"),
)
ASKED = [
    *({}, {"tensor_parallel_size": 4}, {"task": "embed"}, {"task": "classify"}, {"quantization": "int4"}),
    *({"language_model_only": True}, {"enable_expert_parallel": True, "tensor_parallel_size": 2}),
    *({"kv_cache_dtype": "fp8"}, {"max_model_len": 64}, {"quantization": "fp8", "tensor_parallel_size": 3}),
]


def changed(config: dict, draw: random.Random) -> None:
    """Another value for a field of it, or of one of its sections; or the field left out, or one more."""
    name = draw.choice([*config, *OFTEN_LEFT_OUT] if "architectures" in config else list(config) or ["a"])
    if isinstance(section := config.get(name), dict) and section and draw.random() < 0.8:
        changed(section, draw)
    elif draw.random() < 0.2:
        config.pop(name, None)
    else:
        config[name] = draw.choice([*ODD, *config.values()])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_config_says_the_answer_is_a_fit_or_sentences(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    known = [json.loads(path.read_text()) for path in sorted(PUBLISHED.glob("*/config.json"))]
    for _ in range(25):
        published = draw.random() < 0.5
        config = deepcopy(draw.choice(known) if published else full_config(draw.choice(OF_ONE_PIECE)))
        for _ in range(draw.choice((1, 1, 2, 3))):
            changed(config, draw)
        asked = draw.choice(ASKED)
        try:
            needs, refusals = judged(tmp_path, config, draw.choice((LARGE, CPU)), load_format="dummy", **asked)
            assert needs is not None or refusals
            if needs is not None:
                start_plan.in_words(needs), start_plan.memory_in_words(needs, WorkerConfig(**asked))
        except Exception as error:
            pytest.fail(f"{error!r} for {asked} of {json.dumps(config)}")


@pytest.mark.parametrize("field", EIGHT_B)
def test_a_field_of_another_type_is_a_sentence(tmp_path: Path, field: str) -> None:
    needs, refusals = judged(tmp_path, {**EIGHT_B, field: WORDS[type(EIGHT_B[field])]})
    assert needs is not None or refusals
    assert all("\n" not in refusal for refusal in refusals)


def test_memory_is_that_of_the_published_model(tmp_path: Path) -> None:
    needs, refusals = judged(tmp_path, EIGHT_B, max_model_len=12288)
    assert refusals == []
    assert (needs.num_parameters, needs.weight_bytes) == (8_030_261_248, 16_060_522_496)
    assert needs.token_bytes == 2 * 32 * 8 * 128 * 2
    assert needs.kv_tokens == (int(48 * GIB * 0.92) - 16_060_522_496) // (16 * 131_072) * 16
    halves, _ = judged(tmp_path, EIGHT_B, tensor_parallel_size=2, kv_cache_dtype="fp8")
    assert (halves.weight_bytes < 8.1e9, halves.token_bytes) == (True, 32_768)
    integers, refusals = judged(tmp_path, EIGHT_B, max_model_len=12288, quantization="int8")
    assert (refusals, integers.quantization, integers.weight_bytes < 8.6e9) == ([], "int8", True)


@pytest.mark.parametrize(
    ("place", "fields", "said"),
    [
        (
            Place(True, 16 * GIB),
            {},
            "model: its weights take 15 GiB in bfloat16, and there are 16 GiB, gpu_memory_utilization 0.92 of them; by "
            "this count it fits with gpu_memory_utilization=0.94 or tensor_parallel_size=2 or quantization=fp8",
        ),
        (
            Place(True, 18 * GIB),
            {"max_model_len": 32768},
            "max_model_len: one sequence of 32768 tokens needs 4 GiB of KV memory, but there are 1.6 GiB, enough for "
            "13120 tokens; by this count it fits with max_model_len=12288 or tensor_parallel_size=2 or "
            "quantization=fp8",
        ),
        (
            Place(True, 24 * GIB),
            {"max_model_len": 65536},
            "max_model_len: one sequence of 65536 tokens needs 8 GiB of KV memory, but there are 7.12 GiB, enough for "
            "58336 tokens; by this count it fits with max_model_len=57344 or gpu_memory_utilization=0.96 or "
            "kv_cache_dtype=fp8 or tensor_parallel_size=2 or quantization=fp8",
        ),
        (
            Place(True, 8 * GIB),
            {"max_model_len": 8192},
            "model: its weights take 15 GiB in bfloat16, and there are 8 GiB, gpu_memory_utilization 0.92 of them; by "
            "this count it fits with tensor_parallel_size=4 or quantization=int4",
        ),
        (
            Place(False, 24 * GIB),
            {},
            "model: its weights take 29.9 GiB in float32, and there are 24 GiB; by this count it fits with "
            "dtype=bfloat16 or quantization=int8",
        ),
        (
            Place(False, 24 * GIB),
            {"dtype": "bfloat16", "max_model_len": 16384, "kv_cache_memory_bytes": GIB},
            "max_model_len: one sequence of 16384 tokens needs 2 GiB of KV memory, but there are 1 GiB, enough for "
            "8192 tokens; by this count it fits with max_model_len=8192 or kv_cache_memory_bytes=2048MiB or "
            "kv_cache_dtype=fp8",
        ),
        (
            Place(True, GIB),
            {},
            "model: its weights take 15 GiB in bfloat16, and there are 1 GiB, gpu_memory_utilization",
        ),
        (Place(False, 4 * GIB), {}, "model: its weights take 29.9 GiB in float32, and there are 4 GiB; no flag alone"),
        (Place(True, None), {"tensor_parallel_size": 3}, "num_attention_heads: 32 cannot be divided among 3 ranks"),
        (Place(True, None), {"max_model_len": 200_000}, "max_model_len: 200000 is more than the model's context"),
        (
            Place(True, 16 * GIB),
            {"kv_cache_memory_bytes": 17 * GIB},
            "kv_cache_memory_bytes: 17 GiB is more than the 1.04 GiB that the weights leave of 16 GiB; by this count "
            "it fits with kv_cache_memory_bytes=1067MiB",
        ),
    ],
)
def test_what_cannot_fit_is_refused(tmp_path: Path, place: Place, fields: dict, said: str) -> None:
    _, refusals = judged(tmp_path, EIGHT_B, place, **fields)
    assert any(refusal.startswith(said) for refusal in refusals), refusals


def test_every_reason_is_said_at_once(tmp_path: Path) -> None:
    config = {
        **EIGHT_B,
        "architectures": ["New"],
        "quantization_config": {"quant_method": "bitsandbytes"},
        "auto_map": {},
    }
    _, refusals = judged(tmp_path, config, model_impl="quire")
    assert [refusal.partition(": ")[2].partition(":")[0] for refusal in refusals] == [
        "architectures",
        "auto_map",
        "quantization_config",
    ]


@pytest.mark.parametrize("field", ["quantization", "quantization_config"])
def test_a_checkpoint_of_mlx_is_refused_by_its_name(tmp_path: Path, field: str) -> None:
    """It names no method; older ones state it in a field of their own alone."""
    _, refusals = judged(tmp_path, {**EIGHT_B, field: {"group_size": 64, "bits": 4}})
    assert ["quantization_config: method 'mlx' is not supported" in one for one in refusals] == [True]


@pytest.mark.parametrize(
    ("changes", "fields", "words"),
    [
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, {}, ["quantization_config", "num_key_value_heads"]),
        ({}, {"tensor_parallel_size": 3}, ["quantization_config", "num_attention_heads"]),
        ({}, {"max_model_len": 10**6, "tensor_parallel_size": 3}, ["quantization", "num_attention_heads", "1000000"]),
    ],
)
def test_reasons_of_several_parts_are_said_together(tmp_path: Path, changes: dict, fields: dict, words: list) -> None:
    """A fault of the spec, its width or its length hides no quantization that is not served, nor one the other."""
    config = {**EIGHT_B, "quantization_config": {"quant_method": "bitsandbytes"}, **changes}
    _, refusals = judged(tmp_path, config, **fields)
    assert len(refusals) == len(set(refusals))
    for word in words:
        assert any(word in refusal for refusal in refusals), (word, refusals)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"num_hidden_layers": 10**7}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**400}, "num_hidden_layers"),
        ({"vocab_size": 10**30}, "vocab_size"),
        ({"max_position_embeddings": 10**400}, "max_position_embeddings"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ({"eos_token_id": [10**400]}, "eos_token_id"),
        ({"hidden_act": ["silu"]}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 1e300}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 1e308}}, "factor"),
        ({"vocab_size": "9" * 10**6}, "vocab_size"),
        ({"architectures": ["x" * 10**6]}, "architectures"),
        ({"quantization_config": "x" * 10**6}, "quantization_config"),
        ({"partial_rotary_factor": "x" * 10**6}, "partial_rotary_factor"),
        ({"rope_scaling": "x" * 10**6}, "rope_parameters"),
        ({"rope_scaling": {"rope_type": "x" * 10**6}}, "rope_type"),
        ({"rope_theta": 1}, "rope_theta"),
        ({"rope_scaling": {**YARN, "mscale": "0.7", "mscale_all_dim": 1}}, "mscale"),
        ({"rope_scaling": {**YARN, "mscale": 1, "mscale_all_dim": 10**400}}, "mscale_all_dim"),
        ({"rope_scaling": {**YARN, "mscale": float("nan"), "mscale_all_dim": 1}}, "mscale"),
        ({"rope_scaling": {**YARN, "attention_factor": 1e308}}, "attention_factor"),
        ({"rope_scaling": {**YARN, "beta_fast": 1e308}}, "beta_fast"),
        ({"rope_scaling": {**YARN, "beta_slow": 5e-324}}, "beta_slow"),
    ],
)
def test_numbers_that_no_model_has_are_refused_at_once(tmp_path: Path, changes: dict, name: str) -> None:
    needs, refusals = judged(tmp_path, {**EIGHT_B, **changes})
    assert needs is None
    (refusal,) = refusals
    assert name in refusal
    assert len(refusal) < 2000  # the longest names every architecture


@pytest.mark.parametrize(
    ("checkpoint", "place", "asked", "precision"),
    [
        ("bfloat16", Place(False, GIB, "AMX"), "auto", "bfloat16 by AMX"),
        ("bfloat16", Place(False, GIB, "AVX-512"), "auto", "bfloat16 by AVX-512"),
        ("bfloat16", Place(False, GIB), "auto", "float32"),
        ("bfloat16", Place(False, GIB), "bfloat16", "bfloat16"),
        ("bfloat16", Place(False, GIB, "AMX"), "float32", "float32"),
        ("float16", Place(False, GIB, "AMX"), "auto", "float32"),
        ("float32", Place(False, GIB, "AMX"), "auto", "float32"),
        ("float16", LARGE, "auto", "float16"),
        ("float32", LARGE, "auto", "float32"),
    ],
)
def test_the_type_is_the_checkpoints_where_the_device_multiplies_it(tmp_path, checkpoint, place, asked, precision):
    needs, _ = judged(tmp_path, {**EIGHT_B, "dtype": checkpoint}, place, dtype=asked)
    assert needs is not None
    assert needs.precision == precision


@pytest.mark.parametrize(
    ("checkpoint", "asked", "dtype"),
    [("float32", "auto", "bfloat16"), ("float32", "float32", "float32"), ("float16", "auto", "float16")],
)
def test_on_a_gpu_quantized_weights_are_multiplied_in_16_bits(tmp_path, checkpoint, asked, dtype):
    config = {**EIGHT_B, "dtype": checkpoint}
    needs, _ = judged(tmp_path, config, dtype=asked, quantization="fp8")
    assert needs is not None
    assert needs.dtype == dtype


@pytest.mark.parametrize(
    ("place", "changes", "fields", "steps"),
    [
        (LARGE, {}, {}, "as CUDA graphs"),
        (LARGE, {}, {"enforce_eager": True}, "call by call: enforce_eager"),
        (CPU, {}, {}, "up to 256 tokens as one tape of native calls"),
        (CPU, {}, {"max_num_seqs": 8}, "up to 128 tokens as one tape of native calls"),
        (CPU, {}, {"max_num_seqs": 8, "max_num_batched_tokens": 64}, "up to 64 tokens as one tape of native calls"),
        (CPU, {}, {"dtype": "float32"}, "up to 256 tokens as one tape of native calls"),
        (CPU, {}, {"enforce_eager": True}, "call by call: enforce_eager"),
        (CPU, {}, {"tensor_parallel_size": 2}, "up to 256 tokens as one tape of native calls"),
        (
            CPU,
            {},
            {"tensor_parallel_size": 2, "enforce_eager": True},
            "call by call: enforce_eager",
        ),
        (
            CPU,
            {"intermediate_size": 14_400},
            {"tensor_parallel_size": 4},
            "call by call: products of 3600 outputs or inputs, no multiple of 32, are oneDNN's",
        ),
        (
            CPU,
            {"num_attention_heads": 24, "head_dim": 72},
            {"tensor_parallel_size": 8, "dtype": "float32"},
            "call by call: products of 360 outputs or inputs, no multiple of 16, are oneDNN's",
        ),
        (CPU, {}, {"dtype": "float16"}, "call by call: products of float16 are oneDNN's"),
        (CPU, {}, {"dtype": "float16", "quantization": "int8"}, "up to 256 tokens as one tape of native calls"),
        (CPU, {"attention_bias": True}, {}, "up to 256 tokens as one tape of native calls"),
        (
            CPU,
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            {},
            "call by call: torch computes the angles of a dynamic rope",
        ),
        (
            CPU,
            {"intermediate_size": 14_352},
            {},
            "call by call: products of 14352 outputs or inputs, no multiple of 32, are oneDNN's",
        ),
        (CPU, {"intermediate_size": 14_352}, {"dtype": "float32"}, "up to 256 tokens as one tape of native calls"),
        (CPU, {"intermediate_size": 14_352}, {"quantization": "int8"}, "up to 256 tokens as one tape of native calls"),
        (CPU, {"intermediate_size": 14_352}, {"quantization": "fp8"}, "up to 256 tokens as one tape of native calls"),
        (
            CPU,
            {
                "quantization_config": {
                    "quant_method": "fp8",
                    "activation_scheme": "dynamic",
                    "weight_block_size": [128, 128],
                }
            },
            {},
            "up to 256 tokens as one tape of native calls",
        ),
        (
            CPU,
            {"quantization_config": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}},
            {},
            "call by call: torch bounds the activations",
        ),
    ],
)
def test_how_steps_run_is_known_before_the_start(tmp_path, place, changes, fields, steps):
    needs, _ = judged(tmp_path, {**EIGHT_B, **changes}, place, **fields)
    assert needs is not None
    assert needs.steps == steps


def test_what_multiplies_bfloat16_is_read_from_the_flags_of_the_processor(tmp_path):
    cpuinfo, wide = tmp_path / "cpuinfo", "avx2 avx512f avx512bw avx512vl avx512dq avx512_vnni"
    assert bf16_products(cpuinfo) == ""
    for flags, name in (
        ("avx2 avx512f avx512_bf16", ""),
        (wide, "AVX-512"),
        ("avx512_bf16 amx_tile amx_bf16 amx_int8", ""),
        (f"{wide} avx512_bf16", "AVX-512"),
        (f"{wide} avx512_bf16 amx_bf16", "AVX-512"),
        (f"{wide} avx512_bf16 amx_tile amx_bf16 amx_int8", "AMX"),
    ):
        cpuinfo.write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\nbugs\t: none\n")
        assert bf16_products(cpuinfo) == name
