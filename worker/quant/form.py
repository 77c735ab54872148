"""The forms in which weights lie in memory, into which every format is read. No torch: deploy reads this.

w is the weight that is meant, q the stored code.
"""

from dataclasses import dataclass
from math import gcd
from typing import Final, Literal, get_args

from quire.worker.fields import DTYPES, ITEM_BYTES, DtypeName

Activations = Literal["token", "static", "none"]
"""The numbers that a product takes beside codes of 8 bits: quantized with a scale of each token's own, with the
checkpoint's, or as they are."""

BLOCK: Final = 128
"""Outputs, and inputs, that share a scale of blocks."""
UNIT: Final = 32
"""Inputs whose activations share a scale beside codes of groups: a group is one of them, or several."""
STEP: Final = "a product takes"
"""The one that has so many inputs together, in refusals."""
LINE: Final = 128
"""Bytes of an output's codes that lie together on a GPU: 256 inputs of 4 bits, 128 of 8."""
Bits = Literal[4, 5, 6, 8]
Table = Literal["", "e2m1", "iq4_nl"]
"""Numbers that codes of 4 bits stand for, as `quire.kernels.linear.code_tables` has them; empty: themselves."""
SmallScale = Literal["float8_e4m3fn", "float8_e8m0fnu"]
"""Types of scales of a byte: multiples of a float32 that all groups of an output share, and powers of two."""
Offset = Literal["none", "zeros", "minima"]
"""The second number of a group: none where codes are symmetric, a zero point, or what is taken off."""
GroupActivations = Literal["int8", "none"]
"""The numbers that a product takes beside codes of groups: 8-bit integers, each UNIT with a scale, or as they are."""
F32_BYTES: Final = ITEM_BYTES["float32"]
ORDER_BYTES: Final = 4
"""Bytes of an input's place, where inputs have an order of their own."""
E4M3: Final = "float8_e4m3fn"
SCALE_BYTES: Final[dict[DtypeName | SmallScale, int]] = {
    **{name: ITEM_BYTES[name] for name in DTYPES},
    **dict.fromkeys(get_args(SmallScale), 1),
}
_TABLES: Final[dict[Table, str]] = {"": "", "e2m1": "float ", "iq4_nl": "table "}


@dataclass(frozen=True, slots=True)
class Dense:
    """The weight itself, in the model's dtype."""

    name = "dense"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class F8Rows:
    """e4m3 codes and a scale s for each output: w[o, i] = q[o, i] s[o]."""

    activations: Activations = "token"
    bound: float | None = None
    """Largest magnitude that an activation is taken for, before its scale is made."""
    stored: bool = True
    """The checkpoint holds the codes; else they are made when it is loaded."""
    has_starts: bool = False
    """A float32 lies behind the codes of an output, with which its sum begins."""

    name = "f8 rows"

    def num_bytes(self, outputs: int, inputs: int) -> int:
        return outputs * (inputs + F32_BYTES * (1 + self.has_starts))

    def __str__(self) -> str:
        bound = "" if self.bound is None else f" up to {self.bound:g}"
        return f"{self.name}, {_IN_WORDS[self.activations]}{bound}"


@dataclass(frozen=True, slots=True)
class F8Blocks:
    """e4m3 codes and a scale s for each 128 outputs by 128 inputs: w[o, i] = q[o, i] s[o / 128, i / 128].

    Activations of a token have a scale for each 128 inputs.
    """

    activations: Literal["token", "none"] = "token"
    has_starts: bool = False
    """As of rows."""

    name = "f8 blocks"

    def num_bytes(self, outputs: int, inputs: int) -> int:
        codes = outputs * (inputs + F32_BYTES * self.has_starts)
        return codes + -(-outputs // BLOCK) * -(-inputs // BLOCK) * F32_BYTES

    def __str__(self) -> str:
        apart = "" if self.activations == "none" else f" and {BLOCK} inputs by {BLOCK}"
        return f"{self.name} of {BLOCK} x {BLOCK}, {_IN_WORDS[self.activations]}{apart}"


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """8-bit integers and a scale s for each output: w[o, i] = q[o, i] s[o]. Activations have a scale for each token."""

    stored: bool = True
    """The checkpoint holds the integers; else they are made when it is loaded."""

    name = "int8 rows"

    def num_bytes(self, outputs: int, inputs: int) -> int:
        return outputs * (inputs + F32_BYTES)

    def __str__(self) -> str:
        return f"{self.name}, {_IN_WORDS['token']}"


@dataclass(frozen=True, slots=True)
class Groups:
    """Codes q of 4 to 8 bits, without a sign, and a scale s for each output and group g of inputs.

    w[o, i] = (q[o, i] - z[o, g]) s[o, g] with a zero point, which is half the range where codes are symmetric; or
    w[o, i] = q[o, i] s[o, g] - m[o, g]; or w[o, i] = t[q[o, i]] s[o, g], where codes are places in a table t.
    """

    bits: Bits
    size: int | None
    """Inputs of a group, a multiple of UNIT, or with 6 bits or a table of its half; None: all of an output."""
    offset: Offset = "none"
    activations: GroupActivations = "none"
    scale: DtypeName | SmallScale = "float16"
    """Type of the scales, and of what is taken off; of what they are multiples of, in superblocks."""
    order: str = ""
    """Digest of the inputs' groups where they do not lie one after the other: equal ones share an order."""
    stored: bool = True
    """The checkpoint holds the codes; else they are made when it is loaded."""
    superblock: int | None = None
    """Inputs whose groups' scales are int8 and multiples of one number, minima of another; None: they are of none."""
    table: Table = ""
    in_words: bool = False
    """Codes lie as GPUs read them: of 5 and 6 bits in bytes, and the last `LINE` of an output filled up."""

    @property
    def held_bits(self) -> Bits:
        """Bits of a code in memory."""
        return 8 if self.in_words and self.bits in (5, 6) else self.bits

    def unit_inputs(self, inputs: int) -> int:
        """Inputs of a superblock that share a unit, on a rank that has so many: all, or those that end where ranks do.

        Ranks have equally many, so that what divides one's length divides where the others begin.
        """
        return gcd(self.superblock or inputs, inputs)

    def has_units(self, inputs: int) -> bool:
        """Scales of a rank's inputs are multiples of something. GPUs read units of whole superblocks alone."""
        return self.superblock is not None and not (self.in_words and inputs % self.superblock)

    @property
    def name(self) -> str:
        return f"{self.bits}-bit {_TABLES[self.table]}{'superblocks' if self.superblock else 'groups'}"

    def num_bytes(self, outputs: int, inputs: int) -> int:
        groups = outputs * (1 if self.size is None else -(-inputs // self.size))
        item_bytes = SCALE_BYTES[self.scale]
        if self.scale == E4M3:
            beside = groups + outputs * F32_BYTES
        elif self.superblock:
            units = outputs * inputs // self.unit_inputs(inputs)
            each = groups + units * item_bytes if self.has_units(inputs) else groups * F32_BYTES
            beside = each * (2 if self.offset == "minima" else 1)
        else:
            beside = groups * {"none": item_bytes, "zeros": item_bytes + 1, "minima": 2 * item_bytes}[self.offset]
        line = LINE if self.in_words else 1
        return outputs * -(-inputs * self.held_bits // (8 * line)) * line + beside

    def __str__(self) -> str:
        size = "all inputs" if self.size is None else f"{self.size}"
        if self.superblock:
            size = f"{self.superblock} with groups of {size}"
        order = ", inputs in an order of their own" if self.order else ""
        held = ", each code in a byte" if self.held_bits > self.bits else ""
        return f"{self.name} of {size}{_OFFSETS[self.offset]}{held}{order}, {_BESIDE_GROUPS[self.activations]}"


Form = Dense | F8Rows | F8Blocks | Int8Rows | Groups

DENSE: Final = Dense()
NVFP4: Final = Groups(4, 16, table="e2m1", scale=E4M3)
MXFP4: Final = Groups(4, 32, table="e2m1", scale="float8_e8m0fnu")
"""The two forms of floats of 4 bits that files other than GGUF hold."""
GROUPS: Final = (
    *(Groups(bits, None).name for bits in (4, 5, 8)),
    *(Groups(bits, UNIT, superblock=8 * UNIT).name for bits in (4, 5, 6)),
    NVFP4.name,
    Groups(4, UNIT, table="iq4_nl").name,
    Groups(4, UNIT, superblock=8 * UNIT, table="iq4_nl").name,
)
SERVED: Final = {
    "cpu": frozenset({Dense.name, F8Rows.name, F8Blocks.name, Int8Rows.name, *GROUPS}),
    "cuda": frozenset({Dense.name, F8Rows.name, F8Blocks.name, Int8Rows.name, *GROUPS}),
}
"""Names of the forms that have a product on a type of device, of layers and of experts."""
TAKE_EXPERTS_TOGETHER: Final = frozenset({"cuda"})
"""Types of devices that multiply all quantized experts of a layer in one operation, or not at all."""
ROUNDS_BESIDE_GROUPS: Final = frozenset({"cpu"})
"""Types of devices that may round the activations beside codes of groups."""
NARROW_BESIDE_CODES: Final = frozenset({"cuda"})
"""Types of devices whose matrix units take codes beside numbers of 16 bits, and none beside float32."""
IN_WORDS: Final = frozenset({"cuda"})
"""Types of devices that read codes of groups in words."""
HAVE_STARTS: Final = frozenset({"cpu"})
"""Types of devices on which sums of 8-bit floats begin with a number of their output's."""
ON_TAPES: Final[frozenset[str]] = SERVED["cpu"]
"""Names of the forms whose products on a processor are native calls, which a tape can note."""

_IN_WORDS: Final[dict[Activations, str]] = {
    "token": "activations quantized token by token",
    "static": "activations quantized by the checkpoint's scales",
    "none": "activations as they are",
}
_BESIDE_GROUPS: Final[dict[GroupActivations, str]] = {
    "int8": f"activations quantized to 8 bits {UNIT} by {UNIT}",
    "none": _IN_WORDS["none"],
}
_OFFSETS: Final[dict[Offset, str]] = {"none": "", "zeros": " with zero points", "minima": " with minima"}
