"""Sizes and counts, for people."""


def format_bytes(num_bytes: int) -> str:
    """For people: three significant digits, binary units."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def format_count(number: int) -> str:
    """For people: three significant digits or a little more, in thousands (K), millions (M) and billions (B)."""
    for factor, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= factor:
            value = number / factor
            return f"{value:.2f} {unit}" if value < 10 else f"{value:.1f} {unit}"
    return str(number)
