"""The tiles of the sampling kernels. None is measured: each fits every chip, and results hang on none of them."""

CHUNK = 4096
"""Logits of a chunk, which one program reduces."""
HISTORY_BLOCK = 1024
"""Tokens of a sequence that a program of `penalize` takes at once."""
HISTORY_PROGRAMS = 8
"""Programs that share the history of a row."""
PIVOTS = 8
"""Logits at which `top_k_top_p` counts what lies above."""
SEARCH_BLOCK = 4096
"""Logits that a program of the search takes at once."""
WARPS = {"summarize": 4, "survey": 8, "gather": 8, "search": 16}
"""Warps of each stage of `top_k_top_p`."""
