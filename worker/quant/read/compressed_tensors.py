"""`quant_method` compressed-tensors: groups of layers, each with arguments for weights and for activations.

Source: the library's quantization/quant_args.py, quant_config.py, lifecycle/apply.py and utils/match.py.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from quire.worker.fields import Config, shown
from quire.worker.quant.form import BLOCK, MXFP4, NVFP4, Activations, F8Blocks, F8Rows, Groups, Int8Rows
from quire.worker.quant.patterns import refuse_slow
from quire.worker.quant.read.packing import Packing
from quire.worker.quant.read.stated import FIELD, OTHERWISE, Grain, LayerStated, expect, group_size, names, section
from quire.worker.quant.read.targets import Targets, read_targets
from quire.worker.weights.parts import ModelError

MOST_GROUPS: Final = 64
FORMATS: Final = {"float-quantized": "float", "int-quantized": "int", "naive-quantized": None}
"""Formats of weights that are stored one code for each, and the type of code that they hold; None: any."""
PACKED: Final = "pack-quantized"
"""Format of weights that share words of 32 bits."""
PACKING: Final = Packing(
    codes="weight_packed",
    scale="weight_scale",
    zeros="weight_zero_point",
    index="weight_g_idx",
    shape="weight_shape",
)
FLOATS_OF_4_BITS: Final[Mapping[str, tuple[str, Groups, Packing]]] = {
    "nvfp4-pack-quantized": (
        "tensor_group",
        NVFP4,
        Packing(
            codes="weight_packed",
            scale="weight_scale",
            unit="weight_global_scale",
            divides=True,
            unread=("input_global_scale",),
            word=8,
        ),
    ),
    "mxfp4-pack-quantized": ("group", MXFP4, Packing(codes="weight_packed", scale="weight_scale", word=8)),
}
"""Formats of floats of 4 bits, two in a byte: the strategy of their weights, the form, and where it lies."""
QUANTIZED: Final = (*FORMATS, PACKED, *FLOATS_OF_4_BITS)
"""Formats of a group's weights."""
EMPTY_FORMATS: Final = (*FORMATS, "dense", None)
"""Formats of a config without groups."""
_PLAIN: Final = re.compile(r"\w{1,64}", re.ASCII)
"""Names of groups that may be shown as they are."""
GRAINS: Final[dict[str, Grain]] = {"tensor": "tensor", "channel": "rows", "block": "blocks"}


@dataclass(frozen=True, slots=True)
class CompressedTensorsStated:
    """Implements `quire.worker.quant.read.stated.Stated`."""

    groups: tuple[tuple[Targets, LayerStated], ...]
    """Targets of each group, and what becomes of them."""
    ignored: Targets
    kv_cache: bool
    method: str = "compressed-tensors"

    def layer(self, module: str) -> LayerStated:
        """The group that names the module itself, else by a pattern, else by the class of all.

        Of several patterns the first by its letters counts, of groups with the same target the last.
        """
        if self.ignored.rank(module) is not None:
            return LayerStated()
        groups = reversed(self.groups)
        ranked = [(rank, stated) for targets, stated in groups if (rank := targets.rank(module)) is not None]
        return min(ranked, key=lambda one: one[0])[1] if ranked else LayerStated()


def read_compressed_tensors(config: Config) -> CompressedTensorsStated:
    """Raises ModelError for what is not served."""
    if _is_used(section(config, "sparsity_config", FIELD), "dense"):
        raise ModelError(f"{FIELD}.sparsity_config", f"sparse weights are not read; {OTHERWISE}")
    if _is_used(section(config, "transform_config", FIELD), ""):
        raise ModelError(f"{FIELD}.transform_config", f"rotations of weights are not read; {OTHERWISE}")
    stated = section(config, "config_groups", FIELD)
    if len(stated) > MOST_GROUPS:
        message = f"has {len(stated)} groups, and may have {MOST_GROUPS}; correct config.json"
        raise ModelError(f"{FIELD}.config_groups", message)
    whole = config.get("format")
    groups = tuple(_group(name, stated, whole) for name in stated)
    if not groups:
        expect(config, "format", FIELD, EMPTY_FORMATS)
    ignored = read_targets(names(config, "ignore"), f"{FIELD}.ignore")
    refuse_slow((pattern for targets, _ in groups for pattern in targets.patterns), f"{FIELD}.config_groups")
    return CompressedTensorsStated(groups, ignored, _kv_cache(section(config, "kv_cache_scheme", FIELD)))


def _group(name: str, stated: Config, whole: object) -> tuple[Targets, LayerStated]:
    inside = f"{FIELD}.config_groups.{name if _PLAIN.fullmatch(name) else shown(name)}"
    if not isinstance(stated[name], dict):
        raise ModelError(inside, f"must be an object, got {shown(stated[name])}; correct config.json")
    group = stated[name]
    if group.get("format") is not None:
        stored_as = expect(group, "format", inside, QUANTIZED)
    else:
        stored_as = expect({"format": whole}, "format", FIELD, QUANTIZED)
    if group.get("output_activations") is not None:
        raise ModelError(f"{inside}.output_activations", f"quantized outputs are not served; {OTHERWISE}")
    targets = read_targets(names(group, "targets", inside), f"{inside}.targets")
    weights, inputs = section(group, "weights", inside), section(group, "input_activations", inside)
    if stored_as == PACKED:
        return targets, _packed(weights, inputs, inside)
    if stored_as in FLOATS_OF_4_BITS:
        return targets, _floats(stored_as, weights, inputs, inside)
    kind = FORMATS[stored_as]
    return targets, _layer(weights, inputs, inside, (kind,) if kind else ("float", "int"))


def _layer(weights: Config, inputs: Config, inside: str, kinds: tuple[str, ...]) -> LayerStated:
    """The form that arguments of weights and activations state together."""
    within, beside = f"{inside}.weights", f"{inside}.input_activations"
    kind = expect(weights, "type", within, kinds)
    expect(weights, "num_bits", within, (8,))
    expect(
        weights, "symmetric", within, (True, None), "asymmetric weights of 8 bits are not served; use symmetric ones"
    )
    expect(weights, "dynamic", within, (False, None))
    expect(weights, "actorder", within, (None,))
    strategies = ("tensor", "channel", "block") if kind == "float" else ("tensor", "channel")
    strategy = expect(weights, "strategy", within, strategies)
    grain = GRAINS[strategy]
    if grain == "blocks" and weights.get("block_structure") not in ([BLOCK, BLOCK], f"{BLOCK}x{BLOCK}"):
        given = shown(weights.get("block_structure"))
        message = f"{given} is not supported; supported: [{BLOCK}, {BLOCK}]; {OTHERWISE}"
        raise ModelError(f"{within}.block_structure", message)
    if kind == "int":
        _dynamic(inputs, beside, kind, ("token",))
        return LayerStated(Int8Rows(), grain, ("weight_scale",))
    if grain == "blocks":
        if inputs:
            _dynamic(inputs, beside, kind, ("group",))
            expect(inputs, "group_size", beside, (BLOCK,))
        return LayerStated(F8Blocks("token" if inputs else "none"), grain, ("weight_scale",))
    activations: Activations = "none"
    if inputs:
        activations = "token" if inputs.get("dynamic") is True else "static"
        if activations == "token":
            # a scale for all tokens of a step would let them depend on each other: each has its own, which is finer
            _dynamic(inputs, beside, kind, ("token", "tensor"))
        else:
            _codes(inputs, beside, kind, ("tensor",))
            expect(inputs, "dynamic", beside, (False, None))
    return LayerStated(
        F8Rows(activations), grain, ("weight_scale",), ("input_scale",) if activations == "static" else ()
    )


def _packed(weights: Config, inputs: Config, inside: str) -> LayerStated:
    """Codes in words, beside activations as they are."""
    within = f"{inside}.weights"
    expect(weights, "type", within, ("int",))
    bits = expect(weights, "num_bits", within, (4, 8))
    expect(weights, "dynamic", within, (False, None))
    # "group" is what a file's weight_g_idx says; without one the groups lie one after the other
    expect(weights, "actorder", within, (None, "weight", "static", "group", "dynamic", False, True))
    strategy = expect(weights, "strategy", within, ("group", "channel"))
    size = group_size(weights, within) if strategy == "group" else None
    is_symmetric = expect(weights, "symmetric", within, (True, False, None))
    if inputs:
        raise ModelError(f"{inside}.input_activations", f"beside weights in words they stay as they are; {OTHERWISE}")
    return LayerStated(Groups(bits, size, "zeros" if is_symmetric is False else "none"), packing=PACKING)


def _floats(stored_as: str, weights: Config, inputs: Config, inside: str) -> LayerStated:
    """Floats of 4 bits; of activations like them nothing is made, so that their scales do not matter."""
    within, beside = f"{inside}.weights", f"{inside}.input_activations"
    strategy, form, packing = FLOATS_OF_4_BITS[stored_as]
    expect(weights, "type", within, ("float",))
    expect(weights, "num_bits", within, (4,))
    expect(weights, "dynamic", within, (False, None))
    expect(weights, "symmetric", within, (True, None))
    expect(weights, "actorder", within, (None, "weight", "static", False))
    expect(weights, "strategy", within, (strategy,))
    expect(weights, "group_size", within, (form.size,))
    if inputs:
        expect(inputs, "type", beside, ("float",))
        expect(inputs, "num_bits", beside, (4,))
    return LayerStated(form, packing=packing, finer=bool(inputs))


def _dynamic(inputs: Config, inside: str, kind: str, strategies: tuple[str, ...]) -> None:
    """Activations that are quantized at run time, like the weights."""
    _codes(inputs, inside, kind, strategies)
    expect(inputs, "dynamic", inside, (True,))


def _codes(inputs: Config, inside: str, kind: str, strategies: tuple[str, ...]) -> None:
    expect(inputs, "type", inside, (kind,))
    expect(inputs, "num_bits", inside, (8,))
    expect(inputs, "symmetric", inside, (True, None))
    expect(inputs, "strategy", inside, strategies)


def _kv_cache(scheme: Config) -> bool:
    if not scheme:
        return False
    inside = f"{FIELD}.kv_cache_scheme"
    expect(scheme, "type", inside, ("float",))
    expect(scheme, "num_bits", inside, (8,))
    expect(scheme, "symmetric", inside, (True,))
    expect(scheme, "dynamic", inside, (False, None))
    expect(scheme, "strategy", inside, ("tensor", "attn_head", None))
    return True


def _is_used(config: Config, unused_format: str) -> bool:
    """True of a section that changes anything: tools write empty ones."""
    return any(value for key, value in config.items() if (key, value) != ("format", unused_format))
