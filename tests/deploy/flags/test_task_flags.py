"""`--runner` and `--convert`: the task that they mean, beside `--task` and in a file."""

from pathlib import Path

import pytest

from quire.deploy.__main__ import build_parser
from quire.deploy.flags.arguments import UsageError, gather


def task(*arguments: str) -> str:
    return gather(build_parser().parse_args(["serve", *arguments]))[1].task


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("--runner auto --convert none", "auto"),
        ("--runner auto --task score", "score"),
        ("--runner generate", "generate"),
        ("--runner pooling", "pooling"),
        ("--runner pooling --convert auto", "pooling"),
        ("--runner pooling --convert embed", "embed"),
        ("--convert classify", "classify"),
        ("--convert=reward", "reward"),
        ("--task score --runner pooling", "score"),
        ("--task embed --convert embed", "embed"),
        ("--trust-remote-code", "auto"),
    ],
)
def test_flags_are_the_task_that_they_mean(words: str, meant: str) -> None:
    assert task(*words.split()) == meant


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        ("--runner generate --convert embed", "--runner generate and --convert embed"),
        ("--task generate --runner pooling", "--task generate and --runner pooling"),
        ("--task score --convert embed", "--task score and --convert embed"),
    ],
)
def test_two_tasks_are_refused(words: str, stated: str) -> None:
    with pytest.raises(UsageError, match=f"{stated}: say different tasks; leave one out"):
        task(*words.split())


def test_a_file_says_the_same_and_the_command_line_goes_before_it(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("runner: pooling\nconvert: classify\ntrust-remote-code: true\n")
    assert task("--config", str(file)) == "classify"
    assert task("--config", str(file), "--convert", "embed") == "embed"
