"""On PYTHONPATH of an engine under test: `quire` is a plain checkout, of which no installer knows."""

import importlib.metadata

find = importlib.metadata.Distribution.from_name


def find_others(name: str) -> importlib.metadata.Distribution:
    if name == "quire":
        raise importlib.metadata.PackageNotFoundError(name)
    return find(name)


importlib.metadata.Distribution.from_name = find_others
