"""`quant_method` gptq: codes of 4 or 8 bits in groups, whose inputs may be in an order of their own.

Source: GPTQModel's quantization/config.py, nn_modules/qlinear and utils/model.py, where versions are converted.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from quire.worker.fields import Config, shown
from quire.worker.quant.form import Groups
from quire.worker.quant.patterns import MOST_PATTERNS, compiled, refuse_slow
from quire.worker.quant.read.packing import Packing
from quire.worker.quant.read.stated import FIELD, OTHERWISE, LayerStated, expect, group_size, names, section
from quire.worker.weights.parts import ModelError

HEAD: Final = "lm_head"
LEFT_OUT: Final = "-:"
"""Mark before a pattern of modules that are not quantized."""
OVERRIDDEN: Final = "+:"
"""Mark before a pattern of modules that are quantized otherwise; it may be left out."""
LESS: Final = {"gptq": 1, "gptq_v2": 0, None: 1}
"""The number that zero points are stored less by, in each version of the format."""
BLOCK_MODULES: Final = "modules_in_block_to_quantize"


@dataclass(frozen=True, slots=True)
class GptqStated:
    """Implements `quire.worker.quant.read.stated.Stated`."""

    quantized: LayerStated
    dynamic: tuple[tuple[re.Pattern[str], LayerStated], ...]
    """Patterns of modules that are stated apart: the first that matches counts."""
    in_block: tuple[str, ...]
    """Ends of the names of all modules that are quantized; empty: every one."""
    has_head: bool
    """The output head is quantized."""
    method: str = "gptq"
    kv_cache: bool = False

    def layer(self, module: str) -> LayerStated:
        if module == HEAD and not self.has_head:
            return LayerStated()
        if module != HEAD and self.in_block and not f".{module}".endswith(self.in_block):
            return LayerStated()
        return next((stated for pattern, stated in self.dynamic if pattern.match(module)), self.quantized)


def read_gptq(config: Config) -> GptqStated:
    """Raises ModelError for what is not served."""
    field = "format" if config.get("checkpoint_format") is None else "checkpoint_format"
    version = expect(config, field, FIELD, tuple(LESS))
    expect(config, "pack_dtype", FIELD, ("int32", None))
    expect(config, "is_marlin_format", FIELD, (False, None))
    for name in ("rotation", "adapter"):
        if config.get(name):
            raise ModelError(f"{FIELD}.{name}", f"{shown(config[name])} is not supported; {OTHERWISE}")
    packing = Packing(
        codes="qweight",
        scale="scales",
        zeros="qzeros",
        index="g_idx",
        is_transposed=True,
        axis=0,
        zeros_axis=1,
        less=LESS[version],
    )
    dynamic = section(config, "dynamic", FIELD)
    if len(dynamic) > MOST_PATTERNS:
        message = f"has {len(dynamic)} patterns, and may have {MOST_PATTERNS}; correct config.json"
        raise ModelError(f"{FIELD}.dynamic", message)
    apart = tuple(_dynamic(pattern, dynamic, config, packing) for pattern in dynamic)
    refuse_slow((pattern for pattern, _ in apart), f"{FIELD}.dynamic")
    return GptqStated(
        _stated(config, FIELD, packing),
        apart,
        _in_block(config),
        bool(expect(config, HEAD, FIELD, (True, False, None))),
    )


def _stated(config: Config, inside: str, packing: Packing) -> LayerStated:
    bits = expect(config, "bits", inside, (4, 8))
    is_symmetric = expect(config, "sym", inside, (True, False, None))
    expect(config, "desc_act", inside, (True, False, None))  # a file's g_idx says which order its inputs have
    form = Groups(bits, group_size(config, inside), "zeros" if is_symmetric is False else "none")
    return LayerStated(form, packing=packing)


def _dynamic(pattern: str, dynamic: Config, whole: Config, packing: Packing) -> tuple[re.Pattern[str], LayerStated]:
    inside = f"{FIELD}.dynamic"
    match = compiled(pattern.removeprefix(LEFT_OUT).removeprefix(OVERRIDDEN), inside)
    if pattern.startswith(LEFT_OUT):
        return match, LayerStated()
    changed = dynamic[pattern]
    if not isinstance(changed, Mapping):
        raise ModelError(inside, f"must hold an object for each pattern, got {shown(changed)}; correct config.json")
    return match, _stated({**whole, **changed}, inside, packing)


def _in_block(config: Config) -> tuple[str, ...]:
    """Lists of the modules that are quantized one after another."""
    lists = config.get(BLOCK_MODULES)
    if lists is None:
        return ()
    if not isinstance(lists, list):
        raise ModelError(f"{FIELD}.{BLOCK_MODULES}", f"must be lists of names, got {shown(lists)}; correct config.json")
    found = [
        name
        for one in lists
        for name in ([one] if isinstance(one, str) else names({BLOCK_MODULES: one}, BLOCK_MODULES))
    ]
    return tuple(f".{name}" for name in found)
