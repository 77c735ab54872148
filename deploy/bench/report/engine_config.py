"""The configuration of an engine as a bench reports it."""

from dataclasses import fields

from quire.deploy.flags.options import ServeOptions


def changed(options: ServeOptions) -> dict[str, object]:
    """The options that differ from their defaults."""
    return {
        field.name: getattr(options, field.name)
        for field in fields(ServeOptions)
        if getattr(options, field.name) != field.default
    }
