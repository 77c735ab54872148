"""`deploy/TUNING.md`: its sizes are what `quire doctor` prints, its commands are taken, its figures and knobs exist."""

import ast
import re
import shlex
from pathlib import Path

import fit_tables as tables
import pytest

from quire.deploy.__main__ import build_parser
from quire.deploy.commands import doctor
from quire.deploy.config import compose, inspected
from quire.deploy.flags.arguments import gather
from quire.deploy.flags.spec import specs
from quire.deploy.model_path import Model
from quire.deploy.supervisor.rundir import RunDir
from quire.frontend.metrics.families import FAMILIES
from quire.frontend.telemetry.scrape import PREFIX
from quire.proto.metrics.families import SCHEDULER_FAMILIES
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place

PAGE = Path(__file__).resolve().parents[2] / "deploy/TUNING.md"
TEXT = PAGE.read_text(encoding="utf-8")
GIB = 1 << 30
PARSER = build_parser()


def rows(heading: str) -> list[list[str]]:
    """Cells of the table under a heading, without its head."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", TEXT.partition("\n## Begin with\n")[2], re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("row", rows("Fit"), ids=lambda row: row[0])
def test_sizes_are_those_that_doctor_prints(capsys: pytest.CaptureFixture[str], row: list[str]) -> None:
    model, parameters, context, token, small_token, *widths = row
    assert len(widths) == len(tables.WIDTHS)

    def printed(*flags: str) -> tuple[int, str]:
        words = ["doctor", str(tables.PUBLISHED / model), *tables.ASKED, *flags]
        code = doctor.run(PARSER.parse_args(words))
        return code, capsys.readouterr().out

    out = printed("-tp", "1")[1]
    assert f"parameters      {parameters} (" in out
    assert f"context length  {context}\n" in out
    assert f"KV cache {token} a token in bfloat16" in out
    assert f"KV cache {small_token} a token in fp8" in printed("-tp", "1", "--kv-cache-dtype", "fp8")[1]
    for size, cell in zip(tables.WIDTHS, widths, strict=True):
        code, out = printed("-tp", str(size))
        assert code == (cell == tables.REFUSED)
        if cell != tables.REFUSED:
            weights, sequences = cell.split(", ")
            assert f"weights {weights} in bfloat16" in out
            assert f"concurrency     {sequences} sequences of 12288 tokens" in out


@pytest.mark.parametrize("line", commands())
def test_what_to_begin_with_is_taken_and_fits(tmp_path: Path, line: str) -> None:
    program, *words = shlex.split(line)
    model, options = gather(PARSER.parse_args(words))
    directory = tables.PUBLISHED / Path(model).name
    assert (program, words[0]) == ("quire", "serve")
    assert compose(options, Model(directory, model), RunDir(str(tmp_path / "run"))).worker.model == str(directory)
    place = Place(options.device != "cpu", 80 * GIB)
    needs, refusals = fit(inspected(options, str(directory)), place)
    assert needs is not None
    assert refusals == []


@pytest.fixture(scope="module")
def literals(modules) -> str:
    """All texts of the code, each joined where it is written in parts."""
    nodes = (node for module in modules.values() for node in ast.walk(module.tree))
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


@pytest.mark.parametrize("row", rows("Mend"), ids=lambda row: row[0])
def test_every_figure_and_every_knob_exists(literals: str, row: list[str]) -> None:
    symptom, figures, knobs = row
    known = {PREFIX + name for name in [*FAMILIES, *SCHEDULER_FAMILIES]}
    flags = {f"--{name}" for spec in specs() for name in spec.names}
    named = re.findall(r"`([^`]+)`", symptom + figures)
    assert named, "a figure is a metric, or a line that is printed"
    for name in named:
        if name.startswith(PREFIX):
            assert name in known
        else:
            assert name in literals
    turned = [words.split()[0] for words in re.findall(r"`([^`]+)`", knobs)]
    assert turned
    assert set(turned) - {"quire"} <= flags
