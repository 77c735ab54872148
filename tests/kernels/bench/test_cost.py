"""Bytes and operations against counts made by hand."""

from quire.kernels.bench import cost
from quire.kernels.bench.cost import Cost


def test_a_norm_reads_and_writes_each_token_and_reads_its_weight() -> None:
    assert cost.rms_norm(3, 8, 2, residual=False) == Cost(3 * 8 * 2 + 3 * 8 * 2 + 8 * 2)
    assert cost.rms_norm(3, 8, 2, residual=True) == Cost(2 * 3 * 8 * 2 + 2 * 3 * 8 * 2 + 8 * 2)


def test_rope_store_kv_moves_queries_twice_and_keys_and_values_into_the_cache() -> None:
    # one token, 4 heads and 2 key-value heads of 8 elements, 4 angles; 2 bytes each, 1 in the cache
    into = (4 + 2 + 2) * 8 * 2 + 2 * 4 * 4 + 8
    out = 4 * 8 * 2 + 2 * 2 * 8 * 1
    assert cost.rope_store_kv(1, 4, 2, 8, 4, 2, 1) == Cost(into + out)
    assert cost.rope_store_kv(5, 4, 2, 8, 4, 2, 1).num_bytes == 5 * (into + out)


def test_rope_in_place_moves_queries_and_keys_twice() -> None:
    # two tokens, 3 heads of 8 elements of 2 bytes; 4 angles, cosine and sine
    assert cost.rope_in_place(2, 3, 8, 2) == Cost(2 * (2 * 2 * 3 * 8 * 2 + 2 * 4 * 4))


def test_an_activation_reads_two_halves_and_writes_one() -> None:
    assert cost.gated_activation(3, 8, 2) == Cost(3 * 16 * 2 + 3 * 8 * 2)


def test_an_embedding_copies_one_row_for_each_token() -> None:
    assert cost.embed(3, 8, 2) == Cost(3 * 8 + 3 * 8 * 2 + 3 * 8 * 2)


def test_a_linear_layer_reads_its_weight_once_whatever_the_tokens() -> None:
    assert cost.linear(3, 8, 4, 2, 2) == Cost((8 * 4 + 3 * 8 + 3 * 4) * 2, 2 * 3 * 8 * 4)
    assert cost.linear(3, 8, 4, 4, 1).num_bytes == 8 * 4 + (3 * 8 + 3 * 4) * 4


def test_experts_read_the_matrices_that_tokens_reach() -> None:
    # 3 tokens, 2 experts of each, 5 reached; 8 elements, 4 inside
    assert cost.experts(3, 2, 5, 8, 4, 2, 1) == Cost(5 * 3 * 8 * 4 + 3 * (2 * 8 * 2 + 2 * 8), 2 * 3 * 2 * 3 * 8 * 4)
    assert cost.route(3, 6, 2, 2) == Cost(3 * (6 * 2 + 2 * 4 + 2 * 4))


def test_a_layer_behind_a_gate_reads_gate_and_up() -> None:
    assert cost.gated_linear(3, 8, 4, 2, 1) == Cost(8 * 4 + (3 * 16 + 3 * 4) * 2, 2 * 3 * 8 * 4)


def test_groups_are_read_with_their_scales_and_offsets() -> None:
    assert cost.linear_groups(3, 64, 4, 2, 8, 32, 2) == Cost(64 * 4 + 2 * 4 * 2 + 3 * 68 * 2, 2 * 3 * 64 * 4)
    assert cost.linear_groups(1, 128, 16, 4, 4, 64, 3).num_bytes == 64 * 16 + 2 * 16 * 3 + 144 * 4


def test_a_fused_norm_adds_its_weight_the_residual_and_the_sum() -> None:
    bare = cost.norm_linear(3, 8, 4, 2, 2, residual=False, gated=False)
    assert bare == Cost((8 * 4 + 3 * 8 + 3 * 4 + 8) * 2, 2 * 3 * 8 * 4)
    added = cost.norm_linear(3, 8, 4, 2, 2, residual=True, gated=False)
    assert added.num_bytes == bare.num_bytes + 2 * 3 * 8 * 2
    gated = cost.norm_linear(3, 8, 4, 2, 2, residual=False, gated=True)
    assert gated == Cost(bare.num_bytes - 3 * 2 * 2, bare.num_flops)


def test_decoding_reads_every_position_once() -> None:
    # rows of 10 and 6 positions; 4 heads over 2 key-value heads of 8 elements, 2 bytes
    moved = 2 * 16 * 2 * 8 * 2 + 2 * 2 * 4 * 8 * 2
    assert cost.attention((1, 1), (10, 6), 4, 2, 8, 2, 2) == Cost(moved, 4 * 16 * 4 * 8)


def test_a_prompt_attends_to_half_a_square() -> None:
    # tokens of positions 0, 1, 2 see 1, 2, 3 positions
    assert cost.attention((3,), (3,), 1, 1, 8, 2, 2).num_flops == 4 * 6 * 8
    # two new tokens behind three cached ones see 4 and 5
    assert cost.attention((2,), (5,), 1, 1, 8, 2, 2).num_flops == 4 * 9 * 8


def test_an_image_attends_to_all_of_itself_and_to_no_other() -> None:
    # images of 3 and 5 patches, 2 heads of 8 elements of 4 bytes
    assert cost.encoder_attention((3, 5), 2, 8, 4) == Cost(4 * 8 * 2 * 8 * 4, 4 * (9 + 25) * 2 * 8)


def test_a_window_bounds_what_is_read_and_multiplied() -> None:
    bound = cost.attention((2,), (10,), 1, 1, 8, 2, 1, window=4)
    assert bound.num_flops == 4 * 8 * 8
    assert bound.num_bytes == 2 * 5 * 8 * 1 + 2 * 2 * 8 * 2
    assert cost.attention((2,), (3,), 1, 1, 8, 2, 1, window=4).num_flops == 4 * 5 * 8


def test_blocks_are_read_and_written_keys_and_values() -> None:
    assert cost.copy_blocks(3, 16, 2, 8, 2) == Cost(3 * 2 * 2 * (16 * 2 * 8) * 2)


def test_the_slower_of_memory_and_arithmetic_is_the_limit() -> None:
    assert Cost(100, 1000).seconds(10.0, 1000.0) == 10.0
    assert Cost(100, 1000).seconds(1000.0, 10.0) == 100.0
