"""The quantization of the model in a folder: what its files state, joined with what was asked for."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from quire.worker.config import WorkerConfig
from quire.worker.fields import Config, read_config, read_json
from quire.worker.quant.form import (
    BLOCK,
    DENSE,
    TAKE_EXPERTS_TOGETHER,
    F8Blocks,
    F8Rows,
    Form,
    GroupActivations,
    Groups,
)
from quire.worker.quant.plan import Headers, Plan, Shape, plan_of, stated_by, with_embedding, without_empty_biases
from quire.worker.quant.read.gguf import GgufStated, read_gguf
from quire.worker.quant.read.headers import WEIGHT, linear_modules
from quire.worker.quant.read.kv_scales import stored_kv_scales
from quire.worker.quant.read.modelopt import leaves_layers_out
from quire.worker.quant.read.packed_headers import is_read
from quire.worker.quant.read.stated import FIELD, Stated
from quire.worker.specs import sizes
from quire.worker.specs.encoder_spec import EncoderSpec
from quire.worker.specs.library.spec import LibrarySpec
from quire.worker.specs.registry import AnySpec, checkpoint_names
from quire.worker.specs.sizes import GATED
from quire.worker.specs.spec import ExpertsSpec, ModelSpec
from quire.worker.weights.gguf.files import is_gguf, read_model
from quire.worker.weights.header import FLOATS, TensorInfo, checkpoint_files, read_contents, read_header
from quire.worker.weights.parts import ModelError

ASKED = "quantization"
"""The field of the configuration."""
OUTPUTS = 16
"""Outputs of gates, and of ups, that products of experts take together."""
TOWER = "vision."
"""Beginning of the paths of a tower's layers."""
MODELOPT_FILE = "hf_quant_config.json"
OWN_FILES = {MODELOPT_FILE: "modelopt", "quantize_config.json": "gptq"}
"""Files beside a config.json that says nothing, and the method that they belong to."""


def read_stated(folder: Path, config: Config) -> Stated | None:
    """The quantization that the files state; None: there is none. Raises ModelError for what is not served.

    CheckpointError for a GGUF file that does not read.
    """
    if is_gguf(folder):
        return read_gguf(read_model(folder))
    section = config.get(FIELD)
    beside = next((name for name in OWN_FILES if (folder / name).exists()), None)
    is_elsewhere = beside == MODELOPT_FILE and isinstance(section, dict) and leaves_layers_out(section)
    stated = None if is_elsewhere else stated_by(config)
    return _stated_beside(folder / beside) if stated is None and beside is not None else stated


def _stated_beside(path: Path) -> Stated | None:
    """The quantization in a file of its own: the first tools for GPTQ wrote one, ModelOpt still does."""
    try:
        return stated_by({FIELD: {"quant_method": OWN_FILES[path.name], **read_json(path)}})
    except ModelError as error:
        raise ModelError(error.field.replace(FIELD, path.name, 1), error.message) from error


def read_plan(config: WorkerConfig, spec: AnySpec) -> Plan:
    """The plan of the model at `config.model`. Of a quantized one the files' headers are read, where there are files.

    Raises ModelError for what is not served, CheckpointError for headers that do not read.
    """
    folder = Path(config.model)
    counted = sizes.count(spec, 1)
    try:
        stated = read_stated(folder, read_config(folder))
        if isinstance(spec, LibrarySpec):
            _refuse_left_dense(spec, stated, config)
        headers = None if stated is None or config.load_format == "dummy" else _headers(folder)
        names = checkpoint_names(spec)
        layers = (
            names.linear_layers(_num_blocks(spec)) if headers is None else names.layers(linear_modules(headers.infos))
        )
        linear = {name: paths for name, paths in layers.items() if counted.matrices.keys() >= set(paths)}
        if headers is not None:
            _refuse_quantized(layers, linear, headers)
        activations: GroupActivations = "int8" if config.dtype == "auto" else "none"
        plan = plan_of(stated, config.quantization, linear, _packable(config, spec), headers, activations)
        if isinstance(stated, GgufStated):
            plan = with_embedding(plan, stated.embedding, activations)
        return plan if headers is None else _beside_weights(plan, config, spec, linear, headers)
    except ModelError as error:
        if error.field == ASKED:
            raise
        raise ModelError(f"{folder}: {error.field}", error.message) from error


def _refuse_left_dense(spec: LibrarySpec, stated: Stated | None, config: WorkerConfig) -> None:
    """Raises ModelError for experts, and for a model without linear layers that are ours."""
    if not spec.expert_tensors:
        if not spec.linears and config.quantization != "none":
            message = f"{spec.architecture} of {spec.library} has no linear layers that are ours; leave it out"
            raise ModelError(ASKED, message)
        return
    taken = f"packs experts, which modules of {spec.library} take in 16 or 32 bits"
    if stated is not None:
        raise ModelError(FIELD, f"{stated.method} {taken}; use the checkpoint that is not quantized")
    if config.quantization != "none":
        raise ModelError(ASKED, f"{config.quantization} {taken}; leave it out")


def _refuse_quantized(
    layers: Mapping[str, tuple[str, ...]], linear: Mapping[str, tuple[str, ...]], headers: Headers
) -> None:
    """Raises ModelError for a tower, and for a router or what else is no linear layer of the plan: AutoAWQ quantizes
    the routers of Qwen3-MoE."""
    for module, paths in layers.items():
        weight = headers.infos.get(f"{module}.{WEIGHT}")
        if weight is not None and weight.dtype in FLOATS:
            continue
        if paths[0].startswith(TOWER):
            remedy = "use a checkpoint that leaves its tower as it is, or set language_model_only"
            raise ModelError(module, f"is quantized, and products of towers are dense; {remedy}")
        if module not in linear:
            raise ModelError(
                module, "is quantized, and taken in 16 or 32 bits alone; use a checkpoint that leaves it as it is"
            )


def _beside_weights(
    plan: Plan, config: WorkerConfig, spec: AnySpec, linear: Mapping[str, tuple[str, ...]], headers: Headers
) -> Plan:
    """The plan with what else the files hold: biases that are none, and the scales of a cache that is to be."""
    biased = sizes.biased(spec)
    unbiased = {name for name, paths in linear.items() if not biased & set(paths)}
    plan = without_empty_biases(plan, unbiased, headers)
    if isinstance(spec, EncoderSpec) or plan.kv_dtype(config.kv_cache_dtype) != "fp8":
        return plan
    heads = {number: layer.num_kv_heads for number, layer in enumerate(spec.kv_layers(1))}
    return replace(plan, kv_scales=stored_kv_scales(headers.infos, heads))


def _packable(config: WorkerConfig, spec: AnySpec) -> dict[str, Shape]:
    """The matrices of one rank, and experts that another was dealt; of the whole model where ranks cannot share it,
    which is refused beside this."""
    size = config.tensor_parallel_size
    everywhere = sizes.count(spec, 1).packable
    return everywhere if sizes.indivisible(spec, size) else everywhere | sizes.count(spec, size).packable


def _num_blocks(spec: AnySpec) -> int:
    if isinstance(spec, LibrarySpec):
        return spec.num_blocks
    return spec.num_layers if isinstance(spec, EncoderSpec) else len(spec.layers)


def _headers(folder: Path) -> Headers | None:
    """Every tensor of the files; None without any."""
    if not any(folder.glob("*.safetensors")):
        return None
    infos: dict[str, TensorInfo] = {}
    contents: dict[str, bytes] = {}
    for path in checkpoint_files(folder)[0]:
        held = read_header(path)
        infos |= held
        contents |= read_contents(path, {name: info for name, info in held.items() if is_read(name, info)})
    return Headers(infos, contents)


def refuse_experts(spec: AnySpec, plan: Plan, device_type: str, group_size: int) -> ModelError | None:
    """The error of the first layer whose experts no product of the device takes together on one of so many ranks,
    which can share them; None: there is none."""
    if device_type not in TAKE_EXPERTS_TOGETHER or not isinstance(spec, ModelSpec) or not plan.of_experts:
        return None
    for number, layer in enumerate(spec.layers):
        if isinstance(one := layer.feed_forward, ExpertsSpec):
            paths = [f"blocks.{number}.mlp.experts.{n}" for n in range(one.num_experts)]
            forms = {name: {plan.form(f"{path}.{name}") for path in paths} for name in GATED}
            if reason := _apart(forms) or _odd(forms, one, group_size):
                field, other = (ASKED, "quantization none") if plan.on_the_fly else (FIELD, "another checkpoint")
                return ModelError(field, f"experts of layer {number} {reason}; choose device cpu, or {other}")
    return None


def _odd(forms: Mapping[str, set[Form]], one: ExpertsSpec, group_size: int) -> str:
    """Why a rank's share of experts in these forms does not fill whole blocks of outputs; empty: it does."""
    whole = BLOCK if any(isinstance(form, F8Blocks) for form in forms[GATED[0]]) else OUTPUTS
    width = one.shares(0, group_size)[1].length
    if not width % whole:
        return ""
    undivided = "" if one.intermediate_size % whole else " (enable_expert_parallel leaves them whole)"
    return f"have {width} of {one.axis} on a rank{undivided}, no multiple of {whole}, which need the CPU backend"


def _apart(forms: Mapping[str, set[Form]]) -> str:
    """Why a layer's experts, whose matrices have these forms, need products of their own; empty: they need none."""
    gate, up, down = (forms[name] for name in GATED)
    every = gate | up | down
    if any(isinstance(form, Groups) and form.order for form in every):
        return "have inputs in an order of their own (act-order), which need the CPU backend"
    if any(isinstance(form, F8Rows) and form.bound is not None for form in every):
        return "cut activations at a bound (activation_scale_ub), which needs the CPU backend"
    if gate != up or len(gate) > 1 or len(down) > 1 or (DENSE in every and len(every) > 1):
        several = ", ".join(sorted(map(str, every)))
        return f"are stored in several ways ({several}), which need the CPU backend"
    return ""
