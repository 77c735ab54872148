"""`quant_method` fp8 and fbgemm_fp8: 8-bit floats with a scale for the tensor, for each output, or for blocks.

Source: transformers' integrations/finegrained_fp8.py and fbgemm_fp8.py, vLLM's quantization/fp8.py.
"""

from dataclasses import dataclass, replace
from typing import Final

from quire.worker.fields import Config, number, shown
from quire.worker.quant.form import BLOCK, Activations, F8Blocks, F8Rows
from quire.worker.quant.read.stated import FIELD, OTHERWISE, LayerStated, expect, names
from quire.worker.weights.parts import ModelError

HEAD: Final = "lm_head"
"""The output head, which the format's own tools never convert, whether they say so or not."""
SKIPPED: Final = ("modules_to_not_convert", "ignored_layers")
"""Two names of one list."""


@dataclass(frozen=True, slots=True)
class Fp8Stated:
    """Implements `quire.worker.quant.read.stated.Stated`."""

    method: str
    quantized: LayerStated
    skipped: frozenset[str]
    kv_cache: bool = False

    def layer(self, module: str) -> LayerStated:
        """Whole components of a module's name are skipped, at its beginning or its end.

        Where such a name ends within a component, tools differ and the file decides: of model.layers.1 transformers
        skips layer 10, too.
        """
        cuts = range(1, len(module))
        begins = {module, *(module[:n] for n in cuts if module[n] == ".")}
        ends = {module[n:] for n in cuts if module[n - 1] == "."}
        if (begins | ends) & self.skipped:
            return LayerStated()
        within = {module[:n] for n in cuts} | {module[n:] for n in cuts}
        is_head = module.rpartition(".")[2] == HEAD
        return replace(self.quantized, may_be_dense=True) if is_head or within & self.skipped else self.quantized


def read_fp8(config: Config) -> Fp8Stated:
    """Raises ModelError for what is not served."""
    skipped = frozenset(name for field in SKIPPED for name in names(config, field))
    expect(config, "fmt", FIELD, ("e4m3", None))
    expect(config, "scale_fmt", FIELD, ("ue8m0", "float", None))
    scheme = expect(config, "activation_scheme", FIELD, ("dynamic", "static", None))
    activations: Activations = "static" if scheme == "static" else "token"
    if config.get("weight_block_size") is None:
        inputs = ("input_scale", "activation_scale") if activations == "static" else ()
        return Fp8Stated(
            "fp8",
            LayerStated(F8Rows(activations), "tensor", ("weight_scale", "weight_scale_inv"), inputs),
            skipped,
        )
    block = config["weight_block_size"]
    if block != [BLOCK, BLOCK]:
        message = f"{shown(block)} is not supported; supported: [{BLOCK}, {BLOCK}]; {OTHERWISE}"
        raise ModelError(f"{FIELD}.weight_block_size", message)
    if activations == "static":
        message = "'static' with weight_block_size: blocks take dynamic activations; correct config.json"
        raise ModelError(f"{FIELD}.activation_scheme", message)
    return Fp8Stated("fp8", LayerStated(F8Blocks(), "blocks", ("weight_scale_inv", "scale")), skipped)


def read_fbgemm(config: Config) -> Fp8Stated:
    """Raises ModelError for what is not served."""
    skipped = frozenset(name for field in SKIPPED for name in names(config, field))
    bound = None
    if config.get("activation_scale_ub") is not None:
        try:
            bound = number(config, "activation_scale_ub")
        except ModelError as error:
            raise ModelError(f"{FIELD}.{error.field}", f"{error.message}; correct config.json") from error
    return Fp8Stated("fbgemm_fp8", LayerStated(F8Rows("token", bound), "rows", ("weight_scale",)), skipped)
