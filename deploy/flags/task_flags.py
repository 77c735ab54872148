"""The task that vLLM's `--runner` and `--convert` mean."""

from typing import Final

MEANT: Final = {
    "runner": {"generate": "generate", "pooling": "pooling"},
    "convert": {"embed": "embed", "classify": "classify", "reward": "reward"},
}
"""Flag -> those of its values that say a task, and which."""
WIDE: Final = "pooling"
"""The task that any but generating is one of."""


def task_of(stated: str, flags: dict[str, str]) -> str:
    """The task that `--task` and such flags state together. `flags`: flag -> its value. Raises `ValueError` for two."""
    tasks = {"task": stated} | {name: MEANT[name].get(value, "auto") for name, value in flags.items()}
    tasks = {name: task for name, task in tasks.items() if task != "auto"}
    narrow = {name: task for name, task in tasks.items() if task != WIDE}
    if len(set(narrow.values())) > 1 or (WIDE in tasks.values() and "generate" in narrow.values()):
        words = " and ".join(f"--{name} {flags.get(name, task)}" for name, task in tasks.items())
        raise ValueError(f"{words}: say different tasks; leave one out")
    return next(iter((narrow or tasks).values()), "auto")
