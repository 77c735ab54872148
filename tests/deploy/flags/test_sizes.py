"""Counts and sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.deploy.flags.sizes import parse_bytes, parse_count, parse_seed
from quire.proto.process.sizes import format_bytes, format_count


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4K", 4096),
        ("12K", 12288),
        ("12k", 12000),
        ("1.5k", 1500),
        ("2M", 2 << 20),
        ("1m", 10**6),
        ("16Ki", 16384),
        ("1Mi", 1 << 20),
    ],
)
def test_counts_are_binary_in_capitals_and_decimal_in_small_letters(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8GiB", 8 << 30),
        ("8 GiB", 8 << 30),
        ("8gib", 8 << 30),
        ("500MB", 500 * 10**6),
        ("1.5GiB", 3 << 29),
        ("64MiB", 64 << 20),
        ("8G", 8 << 30),
        ("8Gi", 8 << 30),
        ("8g", 8 * 10**9),
        ("1024", 1024),
        ("7B", 7),
    ],
)
def test_sizes_know_binary_and_decimal_units(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "K", "-1", "1e3", "4KK", "12 tokens", "0x10", "1.0001k", "٣", "nan", "1,000"])
def test_what_is_no_count_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="got"):
        parse_count(text)


@pytest.mark.parametrize("text", ["", "GiB", "-8GiB", "8XB", "8GiBs", "1.0000001KiB"])
def test_what_is_no_size_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="got"):
        parse_bytes(text)


@given(st.integers(0, 10**15))
def test_plain_numbers_are_exact(value: int) -> None:
    assert parse_count(str(value)) == parse_bytes(str(value)) == value
    assert parse_bytes(f"{value}KiB") == value * 1024


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1000, "1000 B"),
        (1 << 20, "1 MiB"),
        (1023 << 20, "1023 MiB"),
        (3 << 29, "1.5 GiB"),
        (2 << 40, "2 TiB"),
    ],
)
def test_sizes_are_shown_in_binary_units(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (5_180_672, "5.18 M"), (70_553_706_496, "70.6 B"), (1000, "1.00 K")]
)
def test_counts_are_shown_in_thousands(number: int, text: str) -> None:
    assert format_count(number) == text


def test_a_seed_is_any_64_bit_integer() -> None:
    assert (parse_seed("-1"), parse_seed(str(2**63 - 1)), parse_seed(str(-(2**63)))) == (-1, 2**63 - 1, -(2**63))
    for text in ("x", "1.5", str(2**63)):
        with pytest.raises(ValueError, match=f"64-bit integer, got '{text}'"):
            parse_seed(text)
