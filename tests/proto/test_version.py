"""The version has one source, and everybody who asks is told the same."""

import tomllib
from pathlib import Path

import quire
from quire.proto.process.version import version


def test_the_package_tells_the_version_that_the_project_states() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert quire.__version__ == version() == project["version"]
