"""The size of an image by a budget of tokens: the most whole ones of its aspect."""

import math

BUDGETS = (70, 140, 280, 560, 1120)
"""Most tokens of an image that a model may have been trained with, as in transformers."""
BUDGET = "max_soft_tokens"


def budget_size(height: int, width: int, unit: int, max_tokens: int) -> tuple[int, int]:
    """Height and width to which an image of so many pixels is resized; `unit`: pixels of a token's side."""
    factor = math.sqrt(max_tokens * unit**2 / (height * width))
    rows, columns = math.floor(factor * height / unit), math.floor(factor * width / unit)
    if not rows:
        rows, columns = 1, min(width // height, max_tokens)
    elif not columns:
        rows, columns = min(height // width, max_tokens), 1
    return rows * unit, columns * unit


def check_budget(max_tokens: int) -> None:
    """Raises `ValueError`."""
    if max_tokens not in BUDGETS:
        raise ValueError(f"{BUDGET}: must be one of {', '.join(map(str, BUDGETS))}, got {max_tokens}")
