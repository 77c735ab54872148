"""The release of quire: its number stands in pyproject.toml, and installers write it down."""

import importlib.metadata
from typing import Final

UNKNOWN = "0+unknown"
"""Version of a plain checkout on PYTHONPATH, which no installer has seen."""


def version() -> str:
    """The installed distribution's version."""
    try:
        return importlib.metadata.version("quire")
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN


__version__: Final = version()
