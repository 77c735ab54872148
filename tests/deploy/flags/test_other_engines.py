"""Flags of old vLLM releases, llama-server and SGLang: taken with a line, or refused with the feature's reason."""

from pathlib import Path

import pytest

from quire.deploy.__main__ import build_parser
from quire.deploy.flags.arguments import UsageError, gather, notices
from quire.deploy.flags.options import ServeOptions
from quire.deploy.flags.other_engines import OTHER_FLAGS


def taken(*arguments: str) -> list[str]:
    """Lines about flags, of a command line that changes no option."""
    namespace = build_parser().parse_args(["serve", *arguments])
    assert gather(namespace) == ("", ServeOptions())
    return notices(namespace)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--swap-space", "4"], "nothing is swapped"),
        (["--swap-space=0"], "nothing is swapped"),
        (["--num-scheduler-steps", "8"], "every step is planned"),
        (["--preemption-mode", "recompute"], "computed again"),
        (["--use-v2-block-manager"], "one block manager"),
        (["--cont-batching"], "always share steps"),
        (["-cb"], "always share steps"),
        (["--flash-attn"], "in tiles"),
        (["--flash-attn", "on"], "in tiles"),
        (["-fa", "auto"], "in tiles"),
        (["--ubatch-size", "512"], "--max-num-batched-tokens"),
        (["--no-mmap"], "stay"),
        (["--stream-interval", "4"], "as they come"),
        (["--disable-overlap-schedule"], "always overlap"),
    ],
)
def test_what_can_only_change_speed_is_taken_with_a_line(arguments: list[str], words: str) -> None:
    [line] = taken(*arguments)
    assert "changes no answer: " in line
    assert words in line


def test_a_configuration_file_says_the_same(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("swap_space: 4\ncont-batching: true\nno-mmap: false\ndisable-log-requests: true\n")
    lines = taken("--config", str(file))
    assert [line.partition(" ")[0] for line in lines] == ["--swap-space", "--cont-batching"]
    file.write_text("ctx-size: 4096\n")
    with pytest.raises(UsageError, match=r"serve.yaml: --ctx-size: use --max-model-len"):
        taken("--config", str(file))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-loras", "4"], "--max-loras: quire serves no adapters yet"),
        (["--max-lora-rank", "16"], "no adapters"),
        (["--speculative-model", "x"], "does not speculate"),
        (["--ctx-size", "4096"], "--ctx-size: use --max-model-len for one request"),
        (["-c", "4096"], "--max-model-len"),
        (["--n-gpu-layers", "-1"], "--device cuda or --device cpu"),
        (["-ngl", "0"], "--device cuda or --device cpu"),
        (["--batch-size", "512"], "--max-num-batched-tokens"),
        (["--parallel", "4"], "--max-num-seqs"),
        (["--threads", "4"], "--num-threads"),
        (["--alias", "x"], "--served-model-name"),
        (["--temp", "0.5"], "--override-generation-config"),
        (["--lora", "x.gguf"], "no adapters"),
        (["--mmproj", "x.gguf"], "for images give a directory"),
        (["--model-path", "/models/x"], "as MODEL"),
        (["--tp", "2"], "--tensor-parallel-size"),
        (["--ep-size", "2"], "--enable-expert-parallel"),
        (["--context-length", "4096"], "--max-model-len"),
        (["--mem-fraction-static", "0.8"], "--gpu-memory-utilization"),
        (["--disable-radix-cache"], "--no-enable-prefix-caching"),
        (["--chunked-prefill-size", "-1"], "--max-num-batched-tokens"),
    ],
)
def test_what_changes_what_is_served_is_refused_by_its_feature_and_no_near_miss(capsys, arguments, words) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(["serve", *arguments])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert words in said
    assert "did you mean" not in said


def test_every_flag_says_why() -> None:
    assert not [name for name, flag in OTHER_FLAGS.items() if not flag.why or name.startswith("-")]
