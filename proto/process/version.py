"""Which release of quire this is."""

import importlib.metadata

UNKNOWN = "0+unknown"
"""Version of a plain checkout on PYTHONPATH, which no installer has seen."""


def version() -> str:
    """The installed distribution's version."""
    try:
        return importlib.metadata.version("quire")
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN
