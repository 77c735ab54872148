"""`quant_method` awq: codes of 4 bits in groups, in the layout that AutoAWQ calls gemm.

Source: AutoAWQ's modules/linear/gemm.py and utils/packing_utils.py, transformers' integrations/awq.py.
"""

from dataclasses import dataclass
from typing import Final

from quire.worker.fields import Config
from quire.worker.quant.form import Groups
from quire.worker.quant.read.packing import Packing
from quire.worker.quant.read.stated import FIELD, OTHERWISE, LayerStated, expect, group_size, names
from quire.worker.weights.parts import ModelError

PACKING: Final = Packing(
    codes="qweight",
    scale="scales",
    zeros="qzeros",
    index="g_idx",
    is_transposed=True,
    axis=1,
    zeros_axis=1,
    order=(0, 4, 1, 5, 2, 6, 3, 7),
)
HEAD: Final = "lm_head"
"""The output head, which the format's own tools never convert."""
FORMATS: Final = ("gemm", "GEMM", None)
OTHER_NAMES: Final = {"bits": "w_bit", "group_size": "q_group_size", "version": "format"}
"""Names that some exports have for these fields."""


@dataclass(frozen=True, slots=True)
class AwqStated:
    """Implements `quire.worker.quant.read.stated.Stated`."""

    quantized: LayerStated
    skipped: tuple[str, ...]
    method: str = "awq"
    kv_cache: bool = False

    def layer(self, module: str) -> LayerStated:
        """Modules are skipped whose name has one of these within it."""
        if module == HEAD or any(name in module for name in self.skipped):
            return LayerStated()
        return self.quantized


def read_awq(config: Config) -> AwqStated:
    """Raises ModelError for what is not served."""
    fields = {name: config.get(other if config.get(name) is None else name) for name, other in OTHER_NAMES.items()}
    expect(fields, "bits", FIELD, (4,))
    expect(fields, "version", FIELD, FORMATS, f"other layouts are not read; {OTHERWISE}")
    if config.get("backend") == "llm-awq":
        raise ModelError(f"{FIELD}.backend", f"the layout of llm-awq is not read; {OTHERWISE}")
    has_zeros = expect(config, "zero_point", FIELD, (True, False, None))
    form = Groups(4, group_size(fields, FIELD), "none" if has_zeros is False else "zeros")
    return AwqStated(LayerStated(form, packing=PACKING), names(config, "modules_to_not_convert"))
