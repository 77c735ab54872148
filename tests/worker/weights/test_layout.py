"""Tensors that hold several parts, or one in another order: each rank reads its share of every part, and no more.

The layouts here are doubles: families whose checkpoints fuse or permute replace them (experts of gpt-oss, Llama 4 and
Granite, the gated delta net's projections by groups); rotary pairs are those of GLM-4, Cohere and ERNIE 4.5.
"""

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire.worker.models.build import build_model
from quire.worker.specs.registry import checkpoint_names, read_spec
from quire.worker.weights.checkpoint import Checkpoint
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.layout import PairsApart, Stored
from quire.worker.weights.load import fill
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import Part, Slice, consecutive, even, whole
from quire.worker.weights.shard import ShardedModule

CPU = torch.device("cpu")
LAYER = r"model\.layers\.(?P<n>\d+)\."
HEAD_DIM, ROTATING, EXPERTS, HIDDEN, INTER = 16, 12, 3, 4, 6


def interleaved(parts):
    """Row n of every part, then row n + 1 of every part."""
    count, (rows, *others) = len(parts), parts[0].full_shape
    regions = [(range(part, count * rows, count), *map(range, others)) for part in range(count)]
    return Stored((count * rows, *others), tuple(regions))


def experts(parts):
    """Expert after expert on an axis of its own, in each the rows of the gate and then those of the other part."""
    rows, inputs = parts[0].full_shape
    halves = (range(rows), range(rows, 2 * rows))
    regions = [(expert, half, range(inputs)) for expert in range(len(parts) // 2) for half in halves]
    return Stored((len(parts) // 2, 2 * rows, inputs), tuple(regions))


def fused(tensors, prefix):
    parts = [tensors.pop(f"{prefix}self_attn.{part}_proj.weight") for part in "qkv"]
    tensors[f"{prefix}self_attn.qkv_proj.weight"] = torch.cat(parts)


def mixed_rows(tensors, prefix):
    parts = [tensors.pop(f"{prefix}mlp.{part}_proj.weight") for part in ("gate", "up")]
    tensors[f"{prefix}mlp.gate_up.weight"] = torch.stack(parts, 1).flatten(0, 1)


def turned(tensors, prefix):
    for part in "qk":
        name = f"{prefix}self_attn.{part}_proj.weight"
        heads = tensors[name].view(-1, HEAD_DIM, tensors[name].shape[1])
        halves, rest = heads[:, :ROTATING].unflatten(1, (2, ROTATING // 2)), heads[:, ROTATING:]
        tensors[name] = torch.cat((halves.transpose(1, 2).flatten(1, 2), rest), 1).flatten(0, 1).contiguous()


QKV = "blocks.{n}.attention.qkv.{part}.weight"
APART = PairsApart(4, 2, HEAD_DIM, ROTATING)
FORMS = {
    "fused": (fused, NameRule(LAYER + r"self_attn\.qkv_proj\.weight", QKV, ("q", "k", "v"))),
    "interleaved": (
        mixed_rows,
        NameRule(LAYER + r"mlp\.gate_up\.weight", "blocks.{n}.mlp.gate_up.{part}.weight", ("gate", "up"), interleaved),
    ),
    "permuted": (turned, NameRule(LAYER + r"self_attn\.(?P<part>[qkv])_proj\.weight", QKV, layout=APART)),
}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_in_another_form_loads_as_the_plain_one_and_costs_no_more(
    form, size, tiny_checkpoint, tmp_path, context
):
    change, rule = FORMS[form]
    folder = tiny_checkpoint()
    spec, tensors = read_spec(folder), load_file(folder / "model.safetensors")
    for layer in range(len(spec.layers)):
        change(tensors, f"model.layers.{layer}.")
    save_file(tensors, tmp_path / "model.safetensors")
    plain = checkpoint_names(spec)
    for rank in range(size):
        ours, wanted = (build_model(spec, context(rank, size)) for _ in range(2))
        with Checkpoint(tmp_path) as source, Checkpoint(folder) as usual:
            num_bytes = fill(ours, source, NameMap((rule, *plain.rules), plain.ignored), CPU)
            assert num_bytes == fill(wanted, usual, plain, CPU)
        for (name, found), expected in zip(ours.named_parameters(), wanted.parameters(), strict=True):
            assert torch.equal(found, expected), name


def test_what_is_stored_for_many_rows_together_is_not_put_into_another_order():
    (scales,) = consecutive((("q", whole(2)),), whole(4))
    with pytest.raises(CheckpointError, match=r"^64 rows have to be put into another order, .* for 2 groups of them"):
        APART((scales,))


class FakeExperts(ShardedModule):
    """The matrices of all experts in one parameter, the outputs of each dealt out to the ranks."""

    def __init__(self, rank, size):
        super().__init__()
        share = even("moe_intermediate_size", INTER, rank, size)
        parts = [
            Part(f"{expert}.{name}", (share, whole(HIDDEN)), offset=offset, index=(expert,))
            for expert in range(EXPERTS)
            for name, offset in (("gate", 0), ("up", share.length))
        ]
        self.declare("weight", torch.float32, tuple(parts), (EXPERTS, 2 * share.length, HIDDEN))


@pytest.mark.parametrize("size", [1, 2])
def test_experts_load_from_a_tensor_each_and_from_one_tensor_for_all(size, tmp_path):
    full = torch.randn(EXPERTS, 2, INTER, HIDDEN)
    apart = {
        f"experts.{expert}.{name}_proj.weight": full[expert, half].contiguous()
        for expert in range(EXPERTS)
        for half, name in enumerate(("gate", "up"))
    }
    parts = tuple(f"{expert}.{name}" for expert in range(EXPERTS) for name in ("gate", "up"))
    forms = {
        "apart": (
            apart,
            NameRule(r"experts\.(?P<expert>\d+)\.(?P<name>gate|up)_proj\.weight", "{expert}.{name}.weight"),
        ),
        "one": (
            {"experts.gate_up_proj": full.flatten(1, 2)},
            NameRule(r"experts\.gate_up_proj", "{part}.weight", parts, experts),
        ),
    }
    for form, (tensors, rule) in forms.items():
        (tmp_path / form).mkdir()
        save_file(tensors, tmp_path / form / "model.safetensors")
        for rank in range(size):
            module = FakeExperts(rank, size)
            with Checkpoint(tmp_path / form) as source:
                assert fill(module, source, NameMap((rule,)), CPU) == full.nbytes // size
            rows = INTER // size
            assert torch.equal(module.weight, full[:, :, rank * rows : (rank + 1) * rows].flatten(1, 2)), form


class Columns(ShardedModule):
    """Two parts whose outputs are columns, and a scale of each: a number without an axis."""

    def __init__(self, rank, size):
        super().__init__()
        outputs = [(name, even("outputs", length, rank, size)) for name, length in (("a", 4), ("b", 6))]
        self.declare("weight", torch.float32, consecutive(tuple(outputs), whole(HIDDEN), axis=1))
        scales = tuple(Part(name, (), index=(number,)) for number, (name, _) in enumerate(outputs))
        self.declare("scale", torch.float32, scales, (2,))


def save_columns(folder, **changes):
    tensors = {"fused.weight": torch.randn(HIDDEN, 10), "a.scale": torch.tensor(2.0), "b.scale": torch.tensor(3.0)}
    save_file({**tensors, **changes}, folder / "model.safetensors")
    return tensors["fused.weight"]


COLUMN_NAMES = NameMap(
    (NameRule(r"fused\.weight", "{part}.weight", ("a", "b")), NameRule(r"(?P<part>[ab])\.scale", "{part}.scale"))
)


@pytest.mark.parametrize("size", [1, 2])
def test_columns_are_dealt_out_and_a_scale_goes_to_its_part(size, tmp_path):
    full = save_columns(tmp_path)
    for rank in range(size):
        module = Columns(rank, size)
        with Checkpoint(tmp_path) as source:
            fill(module, source, COLUMN_NAMES, CPU)
        a, b = full[:, :4].chunk(size, 1)[rank], full[:, 4:].chunk(size, 1)[rank]
        assert torch.equal(module.weight, torch.cat((a, b), 1))
        assert module.scale.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rank", [0, 1])
def test_padding_is_zeros_on_whichever_axis_it_lies(rank, axis, tmp_path):
    """Merged along one axis, dealt out along either, of three indices: one rank gets two, the other one and padding."""
    tensors = {part: torch.rand(3, 3) + 1 for part in "ab"}
    save_file(tensors, tmp_path / "model.safetensors")
    shares = [whole(3), whole(3)]
    shares[axis] = Slice(3, 2 * rank, 2 * rank + 2)
    layer = ShardedModule()
    layer.declare("weight", torch.float32, consecutive((("a", shares[0]), ("b", shares[0])), shares[1]))
    with Checkpoint(tmp_path) as checkpoint:
        fill(layer, checkpoint, NameMap((NameRule(r"(?P<part>[ab])", "{part}.weight"),)), CPU)
    wanted = [torch.nn.functional.pad(tensors[part], (0, 1) if axis else (0, 0, 0, 1)) for part in "ab"]
    wanted = [tensor.narrow(axis, 2 * rank, 2) for tensor in wanted]
    assert torch.equal(layer.stored("weight"), torch.cat(wanted))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"fused.weight": torch.zeros(HIDDEN, 9)},
            r"^fused\.weight: has shape \[4, 9\], the config describes \[4, 10\]",
        ),
        ({"scales.c": torch.tensor(1.0)}, r"^scales\.c: .* no place for it"),
    ],
)
def test_a_tensor_that_does_not_hold_its_parts_is_refused(changes, message, tmp_path):
    save_columns(tmp_path, **changes)
    with Checkpoint(tmp_path) as source, pytest.raises(CheckpointError, match=message):
        fill(Columns(0, 1), source, COLUMN_NAMES, CPU)


def test_a_part_that_a_fused_tensor_and_its_own_both_fill_is_refused(tmp_path):
    save_columns(tmp_path, **{"z.weight": torch.zeros(HIDDEN, 4)})
    names = NameMap((*COLUMN_NAMES.rules, NameRule(r"z\.weight", "a.weight")))
    with (
        Checkpoint(tmp_path) as source,
        pytest.raises(CheckpointError, match=r"a\.weight was already filled from fused"),
    ):
        fill(Columns(0, 1), source, names, CPU)
