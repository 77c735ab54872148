"""The release of quire: its number stands in pyproject.toml, and installers write it down."""

UNKNOWN = "0+unknown"
"""Version of a plain checkout on PYTHONPATH, which no installer has seen."""


def version() -> str:
    """The installed distribution's version."""
    import importlib.metadata  # takes longer than the rest of a small command

    try:
        return importlib.metadata.version("quire")
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN


def __getattr__(name: str) -> str:
    """`__version__`, as a name of `quire`: every process imports that, and few want the version."""
    if name != "__version__":
        raise AttributeError(f"no attribute {name!r}")
    return version()
