"""Linear layers of random codes, a class for each form, all called alike: what holds of every form is tested once."""

import torch

from quire.kernels.experts.coded import Coded, CodedMatrices
from quire.kernels.experts.route import NOWHERE
from quire.kernels.linear import linear_f8, linear_f8_blocks, linear_groups, linear_int8
from quire.kernels.linear.code_tables import numbers

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OFFSETS = ("none", "zeros", "minima", "units", "units+minima")
"""What is beside the scales of groups."""
TABLES = ("e2m1", "e2m1+f8", "e2m1+powers", "iq4_nl", "iq4_nl+units")
"""The same where codes of 4 bits stand for numbers of a table."""


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_f8(outputs, inputs, seed=0):
    """Any code but NaN, so many of them tiny or saturated."""
    body = torch.randint(0, 127, (outputs, inputs), generator=torch.Generator().manual_seed(seed))
    return (body + 128 * (random(outputs, inputs, seed=seed) > 0)).to(torch.uint8).view(torch.float8_e4m3fn)


def same(a, b):
    """Bit for bit, NaN included."""
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


class Layer:
    """A weight and how it is multiplied: `weight` stands before the bias in a call, `how` at its end."""

    weight: tuple[torch.Tensor | None, ...]
    how: tuple

    def __init__(self, plain, joined, rounds):
        self.plain, self.joined = plain, joined
        self.rounds = rounds
        """Whether activations become codes: a row that is not finite is NaN then."""

    @property
    def scale(self):
        return self.weight[1]

    def __call__(self, x, bias=None):
        return self.plain(x, *self.weight, bias, *self.how)

    def normed(self, x, residual, gain, bias=None, gate=None, eps=1e-5):
        return self.joined(x, residual, gain, eps, *self.weight, bias, gate, *self.how)

    def put(self, place, tensor):
        """Replace a tensor of the weight: 0 are the packed codes, 1 the scale."""
        self.weight = (*self.weight[:place], tensor, *self.weight[place + 1 :])

    def reference(self, x, bias=None):
        return self.plain.reference(x, *self.weight, bias, *self.how)

    def reference_normed(self, x, residual, gain, gate, eps=1e-5):
        return self.joined.reference(x, residual, gain, eps, *self.weight, None, gate, *self.how)

    def clear(self):
        """Let all weights be 0, by scales and offsets."""
        self.scale.zero_()


class Int8(Layer):
    """8-bit integers, a scale for each output."""

    def __init__(self, outputs, inputs, seed=0):
        super().__init__(linear_int8.linear_int8, linear_int8.norm_linear_int8, rounds=True)
        self.weight, self.how = linear_int8.pack(random(outputs, inputs, seed=seed)), ()


class F8Rows(Layer):
    """8-bit floats, a scale for each output."""

    def __init__(self, outputs, inputs, seed=0, way="token"):
        super().__init__(linear_f8.linear_f8, linear_f8.norm_linear_f8, way != "none")
        self.codes = random_f8(outputs, inputs, seed)
        self.weight = linear_f8.pack(self.codes), random(outputs, seed=seed + 1).abs() / 448
        self.how = way, torch.tensor([0.01]) if way == "static" else None

    def exact(self, x, bias=None):
        """The product in float64 of what the rows are rounded to, and what its terms come to at most."""
        wide = x.double()
        if self.rounds:
            codes, scales = linear_f8.quantize(x, self.how[1])
            wide = codes.double() * scales.double()[:, None]
        return _product(wide, self.codes.double() * self.scale.double()[:, None], bias)


class F8Blocks(Layer):
    """8-bit floats, a scale for each 128 outputs by 128 inputs."""

    def __init__(self, outputs, inputs, seed=0, way="token"):
        super().__init__(linear_f8_blocks.linear_f8_blocks, linear_f8_blocks.norm_linear_f8_blocks, way != "none")
        self.codes = random_f8(outputs, inputs, seed)
        scale = random(-(-outputs // 128), -(-inputs // 128), seed=seed + 1).abs() / 448
        self.weight, self.how = (linear_f8.pack(self.codes), scale), (way,)

    def exact(self, x, bias=None):
        """The product in float64 of what the rows are rounded to, and what its terms come to at most."""
        (outputs, inputs), wide = self.codes.shape, x.double()
        scale = self.scale.double().repeat_interleave(128, 0)[:outputs].repeat_interleave(128, 1)[:, :inputs]
        if self.rounds:
            rounded = [linear_f8.quantize(part, None) for part in x.split(128, 1)]
            wide = torch.cat([codes.double() * scales.double()[:, None] for codes, scales in rounded], 1)
        return _product(wide, self.codes.double() * scale, bias)


class Groups(Layer):
    """Codes of 4 to 8 bits, a scale for each group of inputs, and an offset or a table.

    kind: bits, what is beside the scales, and activations. With units scales are of a byte, f8 are e4m3.
    """

    def __init__(self, outputs, inputs, seed=0, kind=(4, "none", "int8"), size=64, stored=torch.float16):
        bits, beside, way = kind
        super().__init__(linear_groups.linear_groups, linear_groups.norm_linear_groups, way == "int8")
        groups, generator = inputs // size, torch.Generator().manual_seed(seed)
        table = beside.partition("+")[0] if beside in TABLES else ""
        self.codes = torch.randint(0, 2**bits, (outputs, inputs), generator=generator).to(torch.uint8)

        def integers(least, end, dtype=torch.uint8):
            return torch.randint(least, end, (outputs, groups), generator=generator).to(dtype)

        scale, unit = (random(outputs, groups, seed=seed + 1) / 2**bits).to(stored), None
        offset = random(outputs, groups, seed=seed + 2, dtype=stored) if "minima" in beside else None
        if "units" in beside:
            unit = torch.tensor([[[0.3 / 2**bits]], [[0.3]]]).expand(2, outputs, 2 - groups % 2)
            unit = (unit * random(*unit.shape, seed=seed + 3).exp()).half()[: 1 if offset is None else 2]
            scale, offset = integers(-9, 10, torch.int8), None if offset is None else integers(-9, 10, torch.int8)
        elif beside == "zeros":
            offset = integers(0, 2**bits)
        elif beside == "e2m1+f8":
            unit, scale = random(1, outputs, 1, seed=seed + 3).exp() / 4096, integers(0, 127).view(torch.float8_e4m3fn)
        elif beside == "e2m1+powers":
            scale = integers(100, 124).view(torch.float8_e8m0fnu)
        pack_scale = linear_groups.pack_scale
        of = None if offset is None else pack_scale(offset)
        self.weight = linear_groups.pack(self.codes, bits), pack_scale(scale), of
        self.how = bits, way, None if unit is None else torch.stack([pack_scale(one) for one in unit]), table

    @property
    def offset(self):
        return self.weight[2]

    @property
    def unit(self):
        return self.how[2]

    def exact(self, x, bias=None):
        """The product in float64 of what the rows are rounded to, and what its terms come to at most."""
        (bits, _, unit, table), wide = self.how, x.double()
        size = self.codes.shape[1] // self.scale.shape[1]
        scale, offset = linear_groups.plain(self.scale, self.offset, unit)
        least = torch.zeros(scale.shape) if table else linear_groups.minima(scale, offset, bits)
        least = least.double().repeat_interleave(size, 1)
        scaled = numbers(self.codes, table).double() * scale.double().repeat_interleave(size, 1)
        if self.rounds:
            integers, step = linear_groups.quantize(x)
            wide = (integers.double() * step.double()[..., None]).flatten(1)
        return _product(wide, scaled - least, bias, scaled.abs() + least.abs())

    def clear(self):
        super().clear()
        if self.offset is not None and self.offset.dtype != torch.uint8:
            self.offset.zero_()


def _product(rows, weight, bias, largest=None):
    bias = torch.zeros(len(weight)).double() if bias is None else bias.double()
    largest = weight.abs() if largest is None else largest
    return rows @ weight.T + bias, rows.abs() @ largest.T + bias.abs()


F8_ROWS = [f"f8 rows {way}" for way in ("token", "static", "none")]
F8_BLOCKS = [f"f8 blocks {way}" for way in ("token", "none")]
GROUPS = [
    "groups 4 none 64 int8",
    "groups 4 zeros 32 int8",
    "groups 4 zeros row int8",
    "groups 4 minima 64 none",
    "groups 4 units+minima 32 int8",
    "groups 5 units+minima 64 int8",
    "groups 5 none 64 none",
    "groups 6 units 64 int8",
    "groups 6 units 16 none",
    "groups 8 minima row int8",
    "groups 8 none 32 none",
    "groups 4 e2m1+f8 16 int8",
    "groups 4 e2m1+powers 32 none",
    "groups 4 iq4_nl+units 32 int8",
]
"""Bits, what is beside the scales, inputs of a group and activations: each way to multiply codes, each kind of numbers
beside them, groups of few and many."""
FORMS = ["int8", *F8_ROWS, *F8_BLOCKS, *GROUPS]


def coded_layer(form, outputs, inputs, seed=0):
    """A layer of a form named in FORMS."""
    *kind, way = form.split()
    match kind:
        case ["f8", "rows"]:
            return F8Rows(outputs, inputs, seed, way)
        case ["f8", "blocks"]:
            return F8Blocks(outputs, inputs, seed, way)
        case ["groups", bits, beside, size]:
            return Groups(outputs, inputs, seed, (int(bits), beside, way), inputs if size == "row" else int(size))
    return Int8(outputs, inputs, seed)


HIDDEN, INNER, COUNT = 256, 128, 3
"""Sizes of experts, and how many there are."""


def coded_matrices(form, outputs, inputs, dtype, biased, seed):
    """The matrix of each expert, in one of the FORMS."""
    layers = [coded_layer(form, outputs, inputs, seed + number) for number in range(COUNT)]
    kind = "int8" if form == "int8" else "_".join(form.split()[:2]).removesuffix("_rows")
    biases = [random(outputs, seed=seed + number, dtype=dtype) if biased else None for number in range(COUNT)]
    if kind == "int8" or kind.startswith("f8"):
        units = [layer.how[1] if kind == "f8" else None for layer in layers]
        each = [Coded(*layer.weight, None, unit, bias) for layer, unit, bias in zip(layers, units, biases, strict=True)]
        return CodedMatrices(kind, outputs, inputs, tuple(each), layers[0].how[0] if layers[0].how else "token")
    each = [Coded(*layer.weight, layer.unit, bias) for layer, bias in zip(layers, biases, strict=True)]
    bits, way, _, table = layers[0].how
    return CodedMatrices("groups", outputs, inputs, tuple(each), way, bits, table)


def draw_experts(form, tokens, k, dtype, biased=False, seed=0):
    """x, ids, weights, gate_up, down; of the tokens one is padding, and one expert gets none."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn((tokens, HIDDEN), generator=generator) / 64).to(dtype)
    ids = torch.rand((tokens, COUNT - 1), generator=generator).argsort(1)[:, :k].int().contiguous()
    ids[1:2] = NOWHERE
    gate_up = coded_matrices(form, 2 * INNER, HIDDEN, dtype, biased, seed)
    down = coded_matrices(form, HIDDEN, INNER, dtype, biased, seed + 50)
    return x, ids, torch.rand((tokens, k), generator=generator), gate_up, down
