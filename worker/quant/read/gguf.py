"""GGUF: every tensor says itself of which type it is; the forms of those that are read, the remedy for all others."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from quire.worker.quant.form import DENSE, Form, Groups
from quire.worker.quant.read.stated import LayerStated, Stated
from quire.worker.weights.gguf.files import GgufModel
from quire.worker.weights.gguf.names import EMBEDDING, EXPERTS, checkpoint_name
from quire.worker.weights.gguf.types import DENSE_TYPES
from quire.worker.weights.parts import ModelError

FORMS: Final[dict[str, Form]] = {
    **dict.fromkeys(DENSE_TYPES, DENSE),
    "Q8_0": Groups(8, 32),
    "Q4_0": Groups(4, 32),
    "Q4_1": Groups(4, 32, "minima"),
    "Q5_0": Groups(5, 32),
    "Q5_1": Groups(5, 32, "minima"),
    "Q4_K": Groups(4, 32, "minima", superblock=256),
    "Q5_K": Groups(5, 32, "minima", superblock=256),
    "Q6_K": Groups(6, 16, superblock=256),
    "Q3_K": Groups(6, 16, superblock=256),
    "Q2_K": DENSE,
    "IQ4_NL": Groups(4, 32, table="iq4_nl"),
    "IQ4_XS": Groups(4, 32, superblock=256, table="iq4_nl"),
    "MXFP4": Groups(4, 32, scale="float8_e8m0fnu", table="e2m1"),
}
OTHERWISE: Final = (
    f"use a file of {', '.join(FORMS)} alone, or the safetensors checkpoint with quantization int8, fp8 or int4"
)
METHOD: Final = "gguf"
NUMBER: Final = re.compile(r"\.experts\.\d+\.")
"""An expert's, in the name of its module."""


@dataclass(frozen=True, slots=True)
class GgufStated:
    """Implements `quire.worker.quant.read.stated.Stated`: the headers state everything."""

    forms: Mapping[str, Form]
    """Name of a module's weight -> its form."""
    embedding: Form
    """That of the embedding, which no name of a linear layer leads to."""
    method: str = METHOD
    kv_cache: bool = False

    def layer(self, module: str) -> LayerStated:
        """One expert's matrix is of the type of all experts'."""
        stored = NUMBER.sub(".experts.", module)
        return LayerStated(self.forms.get(f"{stored}.weight", DENSE))


def read_gguf(model: GgufModel) -> Stated | None:
    """None: nothing is quantized. Raises ModelError for a type that is not read."""
    forms: dict[str, Form] = {}
    for stored, tensor in model.tensors.items():
        kind, file = tensor.type.name, model.headers[stored].path.name
        if kind not in FORMS:
            raise ModelError(f"{file}: {stored}", f"is {kind}, which is not read; {OTHERWISE}")
        if FORMS[kind] != DENSE and len(tensor.shape) != (3 if stored.endswith(EXPERTS) else 2):
            raise ModelError(f"{file}: {stored}", f"is {kind} and no matrix; {OTHERWISE}")
        forms[checkpoint_name(stored, model.metadata) or stored] = FORMS[kind]
    if all(form == DENSE for form in forms.values()):
        return None
    return GgufStated(forms, FORMS[model.tensors[EMBEDDING].type.name] if EMBEDDING in model.tensors else DENSE)
