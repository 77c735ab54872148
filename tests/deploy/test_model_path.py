"""MODEL: what is served, what is refused, and that the words say how to go on."""

import json
import os
from pathlib import Path

import huggingface_hub
import pytest

from quire.deploy.__main__ import main
from quire.deploy.flags.arguments import UsageError
from quire.deploy.model_path import CONFIG_ONLY, EMBEDDED, WANTED, resolve


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").touch()
    return directory


def test_the_embedded_model_is_the_default() -> None:
    found = resolve("", "auto")
    assert found.directory == EMBEDDED
    assert found.name == "quire-default"


def test_a_local_directory_is_taken(model: Path) -> None:
    assert resolve(f"{model}/", "auto").directory == model
    assert resolve(str(model), "auto").name == str(model)


@pytest.mark.parametrize(
    ("kind", "positions", "expected"),
    [("llama", 131_072, 2048), ("bert", 512, 2048), ("xlm-roberta", 8194, 8194), ("bert", "many", 2048)],
)
def test_a_step_holds_the_longest_prompt_of_a_model_that_reads_it_whole(model, kind, positions, expected) -> None:
    config = {"architectures": ["Any"], "model_type": kind, "max_position_embeddings": positions}
    (model / "config.json").write_text(json.dumps(config))
    assert resolve(str(model), "auto").step_tokens == expected


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(model: Path, missing: str) -> None:
    (model / missing).unlink()
    with pytest.raises(UsageError, match=missing.replace("model.", r"\*.")):
        resolve(str(model), "auto")


def test_another_tokenizer_stands_in_for_the_models_own(model: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (model / "tokenizer.json").rename(tmp_path / "other" / "tokenizer.json")
    with pytest.raises(UsageError, match=r"tokenizer\.json is missing.*--tokenizer"):
        resolve(str(model), "auto")
    assert resolve(str(model), "auto", str(tmp_path / "other")).directory == model
    with pytest.raises(UsageError, match=f"--tokenizer {model}: must be a directory with"):
        resolve(str(model), "auto", str(model))


def test_dummy_weights_need_no_files(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert resolve(str(model), "dummy").directory == model


def test_pickled_weights_are_refused(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(UsageError, match="pickles run code"):
        resolve(str(model), "auto")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_config_that_is_no_file_is_refused_unread(model: Path, make) -> None:
    (model / "config.json").unlink()
    make(model / "config.json")
    with pytest.raises(UsageError, match=r"config\.json is no file; give the path"):
        resolve(str(model), "auto")


@pytest.mark.parametrize("content", ["", "[]", "{", "{}", '{"model_type": ' + "[" * 100_000])
def test_a_broken_config_is_refused(model: Path, content: str) -> None:
    (model / "config.json").write_text(content)
    with pytest.raises(UsageError, match=r"config\.json"):
        resolve(str(model), "auto")


@pytest.mark.parametrize("shard", ["other.safetensors", "../model.safetensors", "a" * 5000, "a\0b", "\ud800"])
def test_shards_must_be_there_and_inside(model: Path, shard: str) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(UsageError, match="is missing"):
        resolve(str(model), "auto")


@pytest.mark.parametrize("asked", ["nothing-here", "/no/such/dir", "a/b/c", "-x/y"])
def test_what_is_neither_directory_nor_hub_id_is_refused(asked: str) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        resolve(asked, "auto")


def test_a_hub_that_does_not_answer_is_told_with_the_way_out(monkeypatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(UsageError, match=r"'some/model'.*no route to host.*local directory"):
        resolve("some/model", "auto")


def hub(monkeypatch: pytest.MonkeyPatch, model: Path) -> list[dict[str, object]]:
    """A hub that answers with this directory; what it was asked for stands in the list."""
    asked: list[dict[str, object]] = []

    class Info:
        sha = "c0ffee"

    def download(repository: str, **arguments: object) -> str:
        asked.append({"repository": repository, **arguments})
        return str(model)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: Info())
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


def test_no_weights_are_fetched_of_a_model_that_config_json_rules_out(monkeypatch, capsys) -> None:
    asked = hub(monkeypatch, Path(__file__).parents[1] / "published/DeepSeek-V3")
    assert main(["serve", "deepseek-ai/DeepSeek-V3", "--http-port=0", "--grpc-port=0"]) == 2
    assert [one["allow_patterns"] for one in asked] == [list(CONFIG_ONLY)]
    said = capsys.readouterr().err.splitlines()
    for line, name in zip(said, ("architectures", "auto_map", "quantization_config"), strict=True):
        assert f"DeepSeek-V3: {name}: " in line


def test_the_hub_is_asked_for_data_of_one_commit_only(monkeypatch, model: Path) -> None:
    asked = hub(monkeypatch, model)
    found = resolve("some/model@main", "auto")
    assert found.directory == model
    assert asked[-1] == {"repository": "some/model", "revision": "c0ffee", "allow_patterns": list(WANTED)}
    assert not any(pattern.endswith((".py", ".bin", ".pt")) for pattern in WANTED)
