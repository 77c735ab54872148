"""The package `quire` itself, in which the six folders install."""

from quire.proto.process.version import __version__ as __version__
