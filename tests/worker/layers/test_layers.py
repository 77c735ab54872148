"""Layers built as one rank of several: what each holds, what it computes, and what cannot be divided."""

import pytest
import torch
from ranks import CPU, context, on_ranks, values
from torch.nn.functional import linear

from quire.kernels.linear.pack import unpack
from quire.worker.layers.embedding import Vocabulary
from quire.worker.layers.linear import ColumnLinear, MergedLinear, QKVLinear, ReplicatedLinear, RowLinear
from quire.worker.layers.mlp import GatedMLP
from quire.worker.layers.norm import RMSNorm
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.int8 import Int8Scheme
from quire.worker.quant.scheme import everywhere
from quire.worker.weights.dummy import fill_dummy
from quire.worker.weights.load import places
from quire.worker.weights.parts import ModelError, kv_head_share


@pytest.mark.parametrize("size", [1, 2, 4])
def test_column_shares_side_by_side_are_the_whole_product(size):
    x = values(3, 8)
    (whole,), _ = on_ranks(1, lambda c: ColumnLinear(c, 8, 12, "outputs", bias=True), lambda layer: layer(x, None))
    shares, _ = on_ranks(size, lambda c: ColumnLinear(c, 8, 12, "outputs", bias=True), lambda layer: layer(x, None))
    torch.testing.assert_close(torch.cat(shares, -1), whole)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_row_shares_sum_to_the_whole_product_and_the_bias_is_added_once(size):
    x = values(3, 8)

    def call(layer):
        columns = 8 // layer.group.size
        return layer(x[:, layer.group.rank * columns : (layer.group.rank + 1) * columns].contiguous(), None)

    results, _ = on_ranks(size, lambda c: RowLinear(c, 8, 6, "inputs", bias=True), call)
    plain = RowLinear(context(), 8, 6, "inputs", bias=True)
    fill_dummy(plain, 0, CPU)
    for result in results:
        torch.testing.assert_close(result, linear(x, unpack(plain.weight), plain.bias))


@pytest.mark.parametrize("size", [1, 2])
def test_merged_and_replicated_layers_hold_their_parts_in_order(size):
    _, layers = on_ranks(size, lambda c: MergedLinear(c, 4, 6, ("gate", "up"), "width"), lambda layer: None)
    rows = 6 // size
    for layer in layers:
        assert [part.name for part in layer.parts["weight"]] == ["gate", "up"]
        assert [part.offset for part in layer.parts["weight"]] == [0, rows]
    replicated = ReplicatedLinear(context(1, 4), 4, 6, bias=True)
    assert (replicated.weight.shape, replicated.bias.shape) == ((6, 4), (6,))


class JoinsGate(DenseScheme):
    """The gate comes to the second product, as it does with codes on GPUs."""

    def joins_gate(self, device_type):
        return True


@pytest.mark.parametrize("scheme", [DenseScheme, JoinsGate])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_gated_block_is_the_same_on_any_number_of_ranks(size, scheme):
    x, residual = values(2, 3, 8)
    norm = RMSNorm(context(), 8, 1e-5)
    fill_dummy(norm, 0, CPU)

    def block(num_ranks, scheme):
        build, call = lambda c: GatedMLP(c, 8, 16, True, "gelu"), lambda layer: layer(x, residual, norm, None)
        return on_ranks(num_ranks, build, call, everywhere(scheme()))[0]

    (whole,) = block(1, DenseScheme)
    torch.testing.assert_close(whole[1], x + residual)
    for result in block(size, scheme):
        torch.testing.assert_close(result, whole)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_of_different_schemes_are_the_same_on_any_number_of_ranks(size):
    """Row by row and output by output, int8 knows nothing of the other ranks."""
    x = values(3, 8)

    def layer(num_ranks):
        def build(c):
            return MergedLinear(c, 8, 16, ("gate", "up"), "width")

        results, _ = on_ranks(
            num_ranks, build, lambda one: one(x, None), {"gate": Int8Scheme(), "up": DenseScheme()}.get
        )
        return torch.cat([result.view(3, 2, -1) for result in results], -1)

    torch.testing.assert_close(layer(size), layer(1))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_delta_of_row_shares_is_summed_with_them_and_the_bias_is_added_once(size):
    x, extra = values(3, 8), values(6, 8)

    def call(layer):
        columns = slice(layer.group.rank * 8 // size, (layer.group.rank + 1) * 8 // size)
        layer.delta = lambda share, _: linear(share, extra[:, columns])
        return layer(x[:, columns].contiguous(), None)

    results, _ = on_ranks(size, lambda c: RowLinear(c, 8, 6, "inputs", bias=True), call)
    (plain,), _ = on_ranks(1, lambda c: RowLinear(c, 8, 6, "inputs", bias=True), lambda layer: layer(x, None))
    for result in results:
        torch.testing.assert_close(result, plain + linear(x, extra))


@pytest.mark.parametrize(
    ("num_kv_heads", "size", "expected"),
    [
        (4, 1, [(0, 4)]),
        (4, 2, [(0, 2), (2, 4)]),
        (2, 4, [(0, 1), (0, 1), (1, 2), (1, 2)]),
        (1, 3, [(0, 1), (0, 1), (0, 1)]),
        (6, 3, [(0, 2), (2, 4), (4, 6)]),
    ],
)
def test_key_value_heads_are_divided_or_repeated(num_kv_heads, size, expected):
    shares = [kv_head_share(num_kv_heads, rank, size) for rank in range(size)]
    assert [(share.start, share.stop) for share in shares] == expected


@pytest.mark.parametrize("size", [1, 2, 4])
def test_each_rank_holds_the_key_value_heads_its_queries_use(size):
    num_heads, num_kv_heads, head_dim = 8, 2, 3
    for rank in range(size):
        layer = QKVLinear(context(rank, size), 5, num_heads, num_kv_heads, head_dim)
        (queries,), (keys,), _ = (
            [part.axes[0] for part in layer.parts["weight"] if part.name == name] for name in ("q", "k", "v")
        )
        used = {head // (num_heads // num_kv_heads) for head in range(queries.start // 3, queries.stop // 3)}
        assert used == set(range(keys.start // 3, keys.stop // 3))
        assert layer.weight.shape[0] == (layer.num_heads + 2 * layer.num_kv_heads) * head_dim


@pytest.mark.parametrize("vocab_size", [1, 3, 8, 9])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_vocabulary_of_any_size_embeds_and_scores_alike_on_any_number_of_ranks(vocab_size, size):
    tokens = torch.arange(vocab_size)
    (whole,), _ = on_ranks(1, lambda c: Vocabulary(c, vocab_size, 6), lambda layer: layer.embed(tokens))
    results, _ = on_ranks(
        size,
        lambda c: Vocabulary(c, vocab_size, 6),
        lambda layer: (layer.embed(tokens), layer.logits(values(2, 6))),
    )
    for embedded, logits in results:
        assert torch.equal(embedded, whole)
        torch.testing.assert_close(logits, values(2, 6) @ whole.T)
        assert logits.shape == (2, vocab_size)


@pytest.mark.parametrize("vocab_size", [1, 3, 8, 9])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_likeliest_token_is_found_in_shares_the_lowest_among_equals_and_bad_rows_are_told(vocab_size, size):
    hidden = values(5, 6)
    hidden[1] = 0.0  # all tokens equal
    hidden[2, 3] = torch.nan
    hidden[3, 0] = torch.inf

    def call(layer):
        return layer.best(hidden), layer.logits(hidden)

    results, _ = on_ranks(size, lambda c: Vocabulary(c, vocab_size, 6), call)
    for (token_ids, finite), logits in results:
        assert finite.tolist() == [True, True, False, False, True]
        assert token_ids[[0, 1, 4]].tolist() == logits[[0, 1, 4]].argmax(-1).tolist()
        assert all(0 <= token < vocab_size for token in token_ids.tolist())


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: ColumnLinear(context(0, 4), 8, 6, "width"), "width"),
        (lambda: RowLinear(context(0, 4), 6, 8, "depth"), "depth"),
        (lambda: GatedMLP(context(0, 4), 8, 6, False, "silu"), "intermediate_size"),
        (lambda: QKVLinear(context(0, 4), 8, 6, 2, 4), "num_attention_heads"),
        (lambda: QKVLinear(context(0, 4), 8, 12, 3, 4), "num_key_value_heads"),
    ],
)
def test_what_cannot_be_divided_among_the_ranks_is_refused_by_its_axis(build, field):
    with pytest.raises(ModelError, match="tensor_parallel_size") as caught:
        build()
    assert caught.value.field == field


def test_every_row_of_a_layer_belongs_to_one_part():
    for place in places(QKVLinear(context(), 5, 4, 2, 3, bias=True)):
        assert place.part.of(place.parameter).shape[0] == place.part.axes[0].length
    layer = QKVLinear(context(), 5, 4, 2, 3)
    assert sum(part.num_elements for part in layer.parts["weight"]) == layer.weight.numel()
