"""The plan of a quantization: by config.json and headers, the form of every layer. No torch: deploy reads this.

A checkpoint names its layers as they were before merging; the plan has their paths in the model.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from quire.worker.config import KVDtype, Quantization
from quire.worker.fields import Config, DtypeName
from quire.worker.quant.form import (
    DENSE,
    HAVE_STARTS,
    IN_WORDS,
    NARROW_BESIDE_CODES,
    ORDER_BYTES,
    ROUNDS_BESIDE_GROUPS,
    SERVED,
    UNIT,
    Dense,
    F8Blocks,
    F8Rows,
    Form,
    GroupActivations,
    Groups,
    Int8Rows,
)
from quire.worker.quant.read.awq import read_awq
from quire.worker.quant.read.compressed_tensors import read_compressed_tensors
from quire.worker.quant.read.fp8 import read_fbgemm, read_fp8
from quire.worker.quant.read.gptq import read_gptq
from quire.worker.quant.read.headers import AnyStored, stored_layer
from quire.worker.quant.read.kv_scales import StoredKVScales, kv_scale_names
from quire.worker.quant.read.modelopt import is_modelopt, read_modelopt
from quire.worker.quant.read.packed_headers import PackedLayer
from quire.worker.quant.read.refused import refuse_method
from quire.worker.quant.read.stacked.mxfp4 import read_mxfp4
from quire.worker.quant.read.stated import FIELD, Stated
from quire.worker.weights.header import TensorInfo
from quire.worker.weights.parts import ModelError

READERS: Final[Mapping[str, Callable[[Config], Stated]]] = {
    "fp8": read_fp8,
    "fbgemm_fp8": read_fbgemm,
    "compressed-tensors": read_compressed_tensors,
    "awq": read_awq,
    "gptq": read_gptq,
    "mxfp4": read_mxfp4,
    "modelopt": read_modelopt,
    "modelopt_fp4": read_modelopt,
    "modelopt_mixed": read_modelopt,
}
FIELDS: Final = (FIELD, "compression_config")
"""Names of the section in config.json; the second is that of the first exports of compressed-tensors."""
Shape = tuple[int, int]
"""Outputs and inputs of a matrix."""
ON_THE_FLY: Final[dict[str, Form]] = {
    "int8": Int8Rows(stored=False),
    "fp8": F8Rows(stored=False),
    "int4": Groups(4, 128, "zeros", scale="bfloat16", stored=False),
}
EMBEDDING: Final = "embedding"
"""Its path in the model."""
EXPERT: Final = ".experts."
"""It is in the paths of the matrices of experts alone."""
KEPT: Final = {"int8": (), "fp8": ("head", EMBEDDING), "int4": ("head", EMBEDDING)}
"""Layers whose weights are not quantized on the fly: the output head decides between close tokens."""
SAME: Final[dict[str, str]] = {
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    **dict.fromkeys(("modelopt_fp4", "modelopt_mixed"), "modelopt"),
}
"""Names that other engines have for a method beside a kernel of their own, or for a part of one."""


@dataclass(frozen=True, slots=True)
class Headers:
    """A checkpoint's files as far as they are known before its weights are read."""

    infos: Mapping[str, TensorInfo]
    contents: Mapping[str, bytes]
    """Bytes of the tensors that hold the group of each input, and of biases."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The form of every linear layer. What no layer of the model is stays as it is."""

    method: str = "none"
    """Name of the quantization."""
    forms: Mapping[str, Form] = field(default_factory=dict)
    """Path in the model of a linear layer, of one part of a merged layer, or of the embedding -> form; the others are
    dense."""
    stored: Mapping[str, AnyStored] = field(default_factory=dict)
    """Name in the checkpoint of a layer that is quantized there -> where its tensors lie."""
    unread: frozenset[str] = frozenset()
    """Tensors of the checkpoint that are no part of the model: the scales for a cache of 8-bit floats."""
    kv_cache: bool = False
    """config.json states a cache of 8-bit floats."""
    kv_scales: Mapping[int, StoredKVScales] = field(default_factory=dict)
    """Number of a layer -> where its scales for such a cache lie; empty where the cache is another."""
    on_the_fly: bool = False
    """The checkpoint is not quantized: its weights are, while it is loaded."""
    finer: bool = False
    """config.json states activations of 4 bits too; products take them as the forms say, which is finer."""
    undivided: int = 0
    """Layers that were to be quantized in groups and are dense, since their inputs divide into none."""

    def form(self, path: str) -> Form:
        return self.forms.get(path, DENSE)

    def kv_dtype(self, asked: KVDtype) -> KVDtype:
        """auto: what config.json states, if it does."""
        return "fp8" if asked == "auto" and self.kv_cache else asked

    def on(self, device_type: str) -> "Plan":
        """The plan as a type of device serves it: on GPUs what groups of codes are multiplied by stays as it is, and
        codes lie in words; on processors sums of 8-bit floats have starts."""
        return replace(self, forms={path: _on(form, device_type) for path, form in self.forms.items()})

    def dtype(self, stated: DtypeName, device_type: str) -> DtypeName:
        """The dtype beside these forms of a checkpoint that states one: on GPUs bfloat16 for float32, which a GGUF file
        is taken for where it states none."""
        return "bfloat16" if device_type in NARROW_BESIDE_CODES and self.kinds and stated == "float32" else stated

    @property
    def kinds(self) -> tuple[Form, ...]:
        """The forms there are beside dense weights, each once."""
        return tuple(dict.fromkeys(self.forms.values()))

    @property
    def of_experts(self) -> tuple[Form, ...]:
        """Those of matrices of experts, each once."""
        return tuple(dict.fromkeys(form for path, form in self.forms.items() if EXPERT in path))

    @property
    def name(self) -> str:
        """The quantization in a word or two, for clients: its name, and what the checkpoint's weights are."""
        stored = "" if self.on_the_fly else ", ".join(dict.fromkeys(form.name for form in self.kinds))
        return f"{self.method} ({stored})" if stored else self.method

    def num_bytes(self, weights: Mapping[str, Shape], item_bytes: int) -> dict[Form, int]:
        """Bytes of each form, of the matrices at these paths; `item_bytes`: of an element of a dense one."""
        total: dict[Form, int] = {}
        orders: set[tuple[str, str]] = set()
        for path, (outputs, inputs) in weights.items():
            form = self.form(path)
            size = outputs * inputs * item_bytes if isinstance(form, Dense) else form.num_bytes(outputs, inputs)
            if isinstance(form, Groups) and form.order and (own := (path.rpartition(".")[0], form.order)) not in orders:
                orders.add(own)  # parts of a merged layer that have the same share it
                size += inputs * ORDER_BYTES
            total[form] = total.get(form, 0) + size
        return total


NO_PLAN: Final = Plan()


def _on(form: Form, device_type: str) -> Form:
    if isinstance(form, F8Rows | F8Blocks):
        return replace(form, has_starts=device_type in HAVE_STARTS)
    if not isinstance(form, Groups):
        return form
    if device_type not in ROUNDS_BESIDE_GROUPS:
        form = replace(form, activations="none")
    return replace(form, in_words=device_type in IN_WORDS)


def refuse_device(plan: Plan, device_type: str) -> ModelError | None:
    """The error of a plan with a form that has no fast product on the device; None: all have one."""
    missing = [form.name for form in plan.kinds if form.name not in SERVED[device_type]]
    if not missing:
        return None
    if not plan.on_the_fly:
        return ModelError(FIELD, f"{missing[0]} need the CPU backend; choose device cpu, or another checkpoint")
    return ModelError("quantization", f"{plan.method} needs the CPU backend; choose quantization none, or device cpu")


def stated_by(config: Config) -> Stated | None:
    """The quantization that config.json states; None: there is none. Raises ModelError for what is not served."""
    for name in FIELDS:
        section = config.get(name)
        if section is None:
            continue
        method = section.get("quant_method") if isinstance(section, dict) else section
        if method is None and is_modelopt(section):
            method = "modelopt"
        method = "mlx" if method is None and _is_mlx(section) else method
        if not isinstance(section, dict) or not isinstance(method, str) or method not in READERS:
            raise refuse_method(method)
        return READERS[method](section)
    if _is_mlx(config.get("quantization")):
        raise refuse_method("mlx")
    return None


def _is_mlx(section: object) -> bool:
    """MLX names no method, and says how large groups are, under a name of its own, too."""
    return isinstance(section, dict) and {"group_size", "bits"} <= section.keys() and "quant_method" not in section


def plan_of(
    stated: Stated | None,
    asked: Quantization,
    layers: Mapping[str, tuple[str, ...]],
    packable: Mapping[str, Shape],
    headers: Headers | None,
    activations: GroupActivations,
) -> Plan:
    """The plan of one model.

    `layers`: name of each linear layer in the checkpoint -> the paths that it fills; `packable`: what a quantization on
    the fly may pack, as one rank holds it; `headers`: None without files; `activations`: what groups of codes are
    multiplied by. Raises ModelError where the files contradict what is stated, and for a quantization that was asked
    for and does not fit.
    """
    if stated is None:
        return _on_the_fly(asked, packable, activations)
    if asked != "none" and SAME.get(asked, asked) != stated.method:
        raise ModelError(
            "quantization", f"{asked} is asked for, but the checkpoint is {stated.method}; leave it out to serve that"
        )
    forms: dict[str, Form] = {}
    stored: dict[str, AnyStored] = {}
    finer = False
    for module, targets in layers.items():
        layer = stated.layer(module)
        form = layer.form
        if headers is not None:
            found = stored_layer(module, layer, headers.infos, headers.contents)
            if found is None:
                continue
            stored[module] = found
            form = found.form if isinstance(found, PackedLayer) else form
        elif layer.may_be_dense:
            continue
        if isinstance(form, Groups):
            form = replace(form, activations=activations)
        if form != DENSE:
            forms |= dict.fromkeys(targets, form)
            finer |= layer.finer
    names = kv_scale_names(headers.infos if headers else ())
    return Plan(stated.method, forms, stored, names, stated.kv_cache, finer=finer)


def without_empty_biases(plan: Plan, unbiased: Collection[str], headers: Headers) -> Plan:
    """The plan without the biases of zeros that the first tools for GPTQ gave to layers that have none.

    `unbiased`: names in the checkpoint of the layers that have none in the model.
    """
    names = {f"{module}.bias" for module in unbiased if isinstance(plan.stored.get(module), PackedLayer)}
    empty = {name for name in names & headers.contents.keys() if not any(headers.contents[name])}
    return replace(plan, unread=plan.unread | empty)


def with_embedding(plan: Plan, form: Form, activations: GroupActivations) -> Plan:
    """The plan of a checkpoint that holds the embedding in this form; `activations`: of a tied head's product."""
    if form == DENSE:
        return plan
    if isinstance(form, Groups):
        form = replace(form, activations=activations)
    return replace(plan, forms={**plan.forms, EMBEDDING: form})


def _on_the_fly(asked: Quantization, packable: Mapping[str, Shape], activations: GroupActivations) -> Plan:
    if asked == "none":
        return NO_PLAN
    if asked not in ON_THE_FLY:
        raise ModelError("quantization", f"{asked} is asked for, but the checkpoint states none; leave it out")
    form = ON_THE_FLY[asked]
    shapes = {path: shape for path, shape in packable.items() if path not in KEPT[asked]}
    if not isinstance(form, Groups):
        return Plan(asked, dict.fromkeys(shapes, form), on_the_fly=True)
    form = replace(form, activations=activations)
    forms: dict[str, Form] = {
        path: replace(form, size=size) for path, (_, inputs) in shapes.items() if (size := _group(form, inputs))
    }
    return Plan(asked, forms, on_the_fly=True, undivided=len(shapes) - len(forms))


def _group(form: Groups, inputs: int) -> int | None:
    """The largest half, or half of a half, of a form's groups that so many inputs divide into; None: not one."""
    size = form.size
    while size is not None and inputs % size:
        size = size // 2 if size > UNIT else None
    return size
