"""`quant_method` modelopt: 8-bit floats with a scale for the tensor, for each output, or for blocks; 4-bit floats.

Source: nvidia-modelopt's torch/export (convert_hf_config.py, unified_export_hf.py), vLLM's quantization/modelopt.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from quire.worker.fields import Config, shown
from quire.worker.quant.form import MXFP4, NVFP4, F8Blocks, F8Rows, Groups
from quire.worker.quant.read.packing import Packing
from quire.worker.quant.read.stated import FIELD, OTHERWISE, LayerStated, expect, names, section
from quire.worker.weights.parts import ModelError

PACKING: Final = Packing(codes="weight", scale="weight_scale", unit="weight_scale_2", unread=("input_scale",), word=8)
POWERS: Final = Packing(codes="weight", scale="weight_scale", word=8)
"""Scales are powers of two, and multiples of nothing; those of activations are made at run time."""
LAYERS: Final[Mapping[str, LayerStated]] = {
    "FP8": LayerStated(F8Rows("static"), "tensor", ("weight_scale",), ("input_scale",)),
    "FP8_PER_CHANNEL_PER_TOKEN": LayerStated(F8Rows("token"), "rows", ("weight_scale",)),
    "FP8_PB_WO": LayerStated(F8Blocks("none"), "blocks", ("weight_scale",)),
    "FP8_PB_REAL": LayerStated(F8Blocks("none"), "blocks", ("weight_scale",)),
    "NVFP4": LayerStated(NVFP4, packing=PACKING, finer=True),
    "W4A16_NVFP4": LayerStated(NVFP4, packing=PACKING),
    "MXFP4": LayerStated(MXFP4, packing=POWERS, finer=True),
}
"""Algorithms that are served; the tool writes MXFP4 and the two of blocks, that it had packed or not yet, in small
letters. MXFP4 is also what it calls weights alone, since nothing else of a file would differ."""
GROUP_SIZES: Final = {NVFP4: (16, 32), MXFP4: (32,)}
"""Inputs of a group of 4-bit floats; those of the form itself where none are stated."""
SMOOTHED: Final = ("NVFP4_AWQ", "NVFP4_SVD")
"""Algorithms whose inputs are multiplied by `pre_quant_scale` before anything else."""
MIXED: Final = "MIXED_PRECISION"
"""The algorithm under which each layer has one of its own."""
MOST_WILDCARDS: Final = 1024
"""As many wildcards of one star, or half as many of two: each is held against every layer."""
MOST_CHARACTERS: Final = 256
"""Characters of a wildcard."""
MOST_STARS: Final = 8
"""Stars of a wildcard: each may take a walk through the name."""
PLAIN: Final = str.maketrans("", "", "*?[")
"""Takes out what makes a wildcard of a name."""


@dataclass(frozen=True, slots=True)
class ModelOptStated:
    """Implements `quire.worker.quant.read.stated.Stated`."""

    whole: LayerStated
    """The statement about layers that are not named."""
    own: Mapping[str, LayerStated]
    """Names of layers with an algorithm of their own."""
    skipped: frozenset[str]
    wildcards: tuple[str, ...]
    """Shell wildcards for names that are skipped."""
    kv_cache: bool
    method: str = "modelopt"

    def layer(self, module: str) -> LayerStated:
        """A module is skipped with everything in it."""
        components = module.split(".")
        if not self.skipped.isdisjoint(".".join(components[:n]) for n in range(1, len(components) + 1)):
            return LayerStated()
        if any(fnmatchcase(module, wildcard) for wildcard in self.wildcards):
            return LayerStated()
        return self.own.get(module, self.whole)


def is_modelopt(config: Config) -> bool:
    """A section of config.json that names no method is the tool's: releases before 0.35 named themselves alone."""
    producer = config.get("producer")
    return isinstance(producer, dict) and producer.get("name") == "modelopt"


def leaves_layers_out(config: Config) -> bool:
    """A section of mixed precision without its layers: releases up to 0.41 named them in hf_quant_config.json alone."""
    return _algorithm(config) == MIXED and not config.get("quantized_layers")


def read_modelopt(config: Config) -> ModelOptStated:
    """The section of config.json, or all of hf_quant_config.json. Raises ModelError for what is not served."""
    inside = FIELD
    if "quantization" in config:  # the layout of the file of its own, which is also found in config.json
        config, inside = section(config, "quantization", FIELD), f"{FIELD}.quantization"
    own: dict[str, LayerStated] = {}
    kv_cache = _kv_cache(config, inside)
    if _algorithm(config) == MIXED:
        layers = section(config, "quantized_layers", inside)
        if not layers:
            message = f"names no layer; {MIXED} has one algorithm for each: download hf_quant_config.json too"
            raise ModelError(f"{inside}.quantized_layers", message)
        for name in layers:
            within = f"{inside}.quantized_layers.{shown(name)}"
            own[name] = _layer(section(layers, name, f"{inside}.quantized_layers"), within)
        whole = LayerStated()
    elif kv_cache and config.get("quant_algo") is None:  # the cache is all that was calibrated
        whole = LayerStated()
    else:
        whole = _layer(config, inside)
    skipped = (*names(config, "exclude_modules", inside), *names(config, "ignore", inside))
    plain = frozenset(name for name in skipped if name == name.translate(PLAIN))
    wildcards = tuple(dict.fromkeys(name for name in skipped if name not in plain))
    walks = sum(max(1, one.count("*")) for one in wildcards)
    if walks > MOST_WILDCARDS:
        message = f"has {walks} stars or wildcards, and may have {MOST_WILDCARDS}; name the modules themselves"
        raise ModelError(f"{inside}.{_skips(config)}", message)
    if long := [one for one in wildcards if len(one) > MOST_CHARACTERS or one.count("*") > MOST_STARS]:
        message = f"{shown(long[0])} could take for ever to match; name the modules themselves"
        raise ModelError(f"{inside}.{_skips(config)}", message)
    return ModelOptStated(whole, own, plain, wildcards, kv_cache)


def _layer(config: Config, inside: str) -> LayerStated:
    algorithm = _algorithm(config)
    if algorithm in SMOOTHED:
        message = f"{algorithm} is not supported: no pre_quant_scale is applied; export it as NVFP4, or {OTHERWISE}"
        raise ModelError(f"{inside}.quant_algo", message)
    if algorithm not in LAYERS:
        known = ", ".join(LAYERS)
        message = f"{shown(config.get('quant_algo'))} is not supported; supported: {known}; {OTHERWISE}"
        raise ModelError(f"{inside}.quant_algo", message)
    stated = LAYERS[algorithm]
    form = stated.form
    if not isinstance(form, Groups):
        return stated
    return replace(stated, form=replace(form, size=_group_size(config, inside, form)))


def _group_size(config: Config, inside: str, form: Groups) -> int | None:
    """Stated beside the algorithm, or, as in config.json, among the arguments of weights alone."""
    groups, within = section(config, "config_groups", inside), f"{inside}.config_groups"
    held = [(config, inside)]
    for name in groups:
        group = f"{within}.{shown(name)}"
        held.append((section(section(groups, name, within), "weights", group), f"{group}.weights"))
    allowed = (*GROUP_SIZES[form], None)
    stated: list[int | None] = [expect(one, "group_size", where, allowed) for one, where in held]
    return next(filter(None, stated), form.size)


def _algorithm(config: Config) -> str:
    """Its name in capitals; empty: there is none."""
    value = config.get("quant_algo")
    return value.upper() if isinstance(value, str) else ""


def _skips(config: Config) -> str:
    """Which of its names the list of skipped modules has."""
    return "exclude_modules" if "exclude_modules" in config else "ignore"


def _kv_cache(config: Config, inside: str) -> bool:
    """The algorithm of the cache: its name in the file of its own, its name or its numbers in config.json."""
    by_name = expect(config, "kv_cache_quant_algo", inside, ("FP8", None)) is not None
    if isinstance(config.get("kv_cache_scheme"), str):  # as releases before 0.35 write it
        return expect(config, "kv_cache_scheme", inside, ("FP8",)) is not None
    scheme, within = section(config, "kv_cache_scheme", inside), f"{inside}.kv_cache_scheme"
    if scheme:
        expect(scheme, "type", within, ("float",))
        expect(scheme, "num_bits", within, (8,))
        expect(scheme, "dynamic", within, (False, None))
    return by_name or bool(scheme)
