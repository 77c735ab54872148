"""`quant_method` mxfp4: the experts of gpt-oss, in floats of 4 bits, all matrices of a layer in one tensor.

Source: transformers' integrations/mxfp4.py.
"""

from dataclasses import dataclass
from typing import Final

from quire.worker.fields import Config
from quire.worker.quant.form import MXFP4
from quire.worker.quant.read.stated import LayerStated

EXPERTS: Final = (".experts.gate_up_proj", ".experts.down_proj")
"""Ends of the names of what the format's tools convert: all else is left as it is, whether they say so or not."""


@dataclass(frozen=True, slots=True)
class Mxfp4Stated:
    """Implements `quire.worker.quant.read.stated.Stated`."""

    method: str = "mxfp4"
    kv_cache: bool = False

    def layer(self, module: str) -> LayerStated:
        """The statement about a linear layer, or about those of all experts together."""
        return LayerStated(MXFP4, is_stacked=True) if module.endswith(EXPERTS) else LayerStated()


def read_mxfp4(config: Config) -> Mxfp4Stated:
    """The section has nothing that changes it."""
    return Mxfp4Stated()
