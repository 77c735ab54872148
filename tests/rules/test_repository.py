"""Promises of the files around the code: Makefile, README, pins, licence."""

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker

from quire.deploy.__main__ import build_parser

TARGETS = {"serve", "check", "test", "lint", "type", "proto", "clean", "venv"}


def makefile_targets(root: Path) -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))


def code_lines(text: str) -> list[str]:
    """Lines of fenced blocks, continued lines joined, prompts and comments removed."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    joined = "\n".join(blocks).replace("\\\n", " ")
    return [line.removeprefix("$ ").split("  #")[0].strip() for line in joined.splitlines()]


PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "frontend/API.md",
    "frontend/METRICS.md",
    "frontend/PARSERS.md",
    "deploy/OPERATING.md",
    "deploy/OPTIONS.md",
    "deploy/TUNING.md",
)


def accepts(words: list[str]) -> bool:
    try:
        build_parser().parse_args(words)
    except SystemExit as stop:
        return stop.code == 0  # --help and --version
    return True


def test_the_makefile_has_every_promised_target(root: Path) -> None:
    assert makefile_targets(root) >= TARGETS


def test_make_commands_of_the_readme_exist(root: Path) -> None:
    lines = [line for page in PAGES for line in code_lines((root / page).read_text())]
    used = set(re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join(lines)))
    assert used, "the README shows no make command"
    assert used <= makefile_targets(root)


def test_quire_commands_of_the_readme_parse(root: Path) -> None:
    lines = [line for page in PAGES for line in code_lines((root / page).read_text())]
    commands = [line for line in lines if re.match(r"(\S*/)?quire ", line)]
    assert commands, "the README shows no quire command"
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        end = next((index for index, word in enumerate(words) if word in ("|", ">", "&", "&&")), len(words))
        assert accepts(words[:end]), command


def test_links_between_the_pages_lead_somewhere(root: Path) -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", (root / page).read_text()):
            assert target.startswith("http") or ((root / page).parent / target).exists(), f"{page}: {target}"


def test_files_that_the_pages_name_exist(root: Path) -> None:
    for page in PAGES:
        named = re.findall(
            r"`((?:proto|frontend|scheduler|worker|kernels|deploy|tests)/[\w/.-]+\.\w+)`", (root / page).read_text()
        )
        assert [name for name in named if not (root / name).exists()] == [], page


def test_pins_are_exact_and_portable(root: Path) -> None:
    for line in (root / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line), f"{line!r}: name==version, no local version"


def test_every_dependency_is_pinned(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[<>=\[;]", line)[0].lower().replace("_", "-") for line in wanted}
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in (root / "constraints.txt").read_text().split()}
    assert names <= pinned


def test_triton_comes_with_the_package_where_a_gpu_may_be(root: Path) -> None:
    """Its kernels are what the engine is on a GPU; no other system has wheels of it."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    (line,) = [line for line in project["dependencies"] if line.startswith("triton")]
    marker = Marker(line.partition(";")[2])
    for system, machine, wanted in (
        ("Linux", "x86_64", True), ("Linux", "aarch64", True), ("Linux", "riscv64", False), ("Darwin", "arm64", False),
    ):  # fmt: skip
        assert marker.evaluate({"platform_system": system, "platform_machine": machine}) == wanted, (system, machine)


def test_the_licence_is_apache_2(root: Path) -> None:
    text = (root / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize("script", ["tests/rules/quietly.sh", "tests/rules/links.sh", "proto/generate.sh"])
def test_shell_scripts_parse(root: Path, script: str) -> None:
    subprocess.run(["sh", "-n", str(root / script)], check=True)


def test_ci_parses_and_is_executable(root: Path) -> None:
    subprocess.run(["bash", "-n", str(root / ".ci/run")], check=True)
    assert os.access(root / ".ci/run", os.X_OK)


def test_quietly_shows_output_only_of_failures(root: Path) -> None:
    quietly = ["sh", str(root / "tests/rules/quietly.sh")]
    good = subprocess.run([*quietly, "working", "echo", "noise"], capture_output=True, text=True, check=False)
    assert (good.returncode, good.stdout) == (0, "working done\n")
    bad = subprocess.run(
        [*quietly, "working", "sh", "-c", "echo why; exit 7"], capture_output=True, text=True, check=False
    )
    assert bad.returncode == 7
    assert "why" in bad.stderr
