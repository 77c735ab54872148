"""`quire doctor` looks at the real machine and the real worker, without weights."""

import json
from pathlib import Path

import pytest

from quire.deploy.__main__ import main


def test_the_embedded_model_would_run_here(capsys) -> None:
    assert main(["doctor", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    for words in ("quire ", "torch ", "CPU features", "paged_attention", "LlamaForCausalLM", "refused: nothing"):
        assert words in out


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["WeirdForCausalLM"]}, "'WeirdForCausalLM'"),
        ({"architectures": ["LlamaForCausalLM"]}, "hidden_size"),
    ],
)
def test_a_model_nobody_can_serve_is_refused_with_the_reason(
    capsys, tmp_path: Path, config: dict[str, object], words: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert main(["doctor", str(tmp_path), "--load-format", "dummy", "--device", "cpu"]) == 1
    out = capsys.readouterr().out
    assert "refused:" in out
    assert words in out.partition("refused:")[2]


def test_a_missing_model_is_refused_and_the_machine_is_shown_all_the_same(capsys) -> None:
    assert main(["doctor", "/no/such/model", "--device", "cpu"]) == 1
    out = capsys.readouterr().out
    assert "rms_norm" in out
    assert "/no/such/model" in out.partition("refused:")[2]
