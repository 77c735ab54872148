"""MODEL: what is served, what is refused, and that the words say how to go on."""

import json
import os
from contextlib import closing
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.hf_api import RepoSibling

from quire.deploy.__main__ import main
from quire.deploy.flags.arguments import UsageError
from quire.deploy.model_path import CONFIG_ONLY, EMBEDDED, WANTED, Model, resolve
from quire.deploy.supervisor.rundir import RunDir

NOWHERE = Path("/nowhere")
"""No directory is made of what is one."""


def resolved(given: str, load_format: str, tokenizer: str = "") -> Model:
    return resolve(given, load_format, NOWHERE, tokenizer)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").touch()
    return directory


def test_the_embedded_model_is_the_default() -> None:
    found = resolved("", "auto")
    assert found.directory == EMBEDDED
    assert found.name == "quire-default"


def test_a_local_directory_is_taken(model: Path) -> None:
    assert resolved(f"{model}/", "auto").directory == model
    assert resolved(str(model), "auto").name == str(model)


@pytest.mark.parametrize(
    ("kind", "positions", "expected"),
    [("llama", 131_072, 2048), ("bert", 512, 2048), ("xlm-roberta", 8194, 8194), ("bert", "many", 2048)],
)
def test_a_step_holds_the_longest_prompt_of_a_model_that_reads_it_whole(model, kind, positions, expected) -> None:
    config = {"architectures": ["Any"], "model_type": kind, "max_position_embeddings": positions}
    (model / "config.json").write_text(json.dumps(config))
    assert resolved(str(model), "auto").step_tokens == expected


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(model: Path, missing: str) -> None:
    (model / missing).unlink()
    with pytest.raises(UsageError, match=missing.replace("model.", r"\*.")):
        resolved(str(model), "auto")


def test_another_tokenizer_stands_in_for_the_models_own(model: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (model / "tokenizer.json").rename(tmp_path / "other" / "tokenizer.json")
    with pytest.raises(UsageError, match=r"tokenizer\.json is missing.*--tokenizer"):
        resolved(str(model), "auto")
    assert resolved(str(model), "auto", str(tmp_path / "other")).directory == model
    with pytest.raises(UsageError, match=f"--tokenizer {model}: must be a directory with"):
        resolved(str(model), "auto", str(model))


def test_dummy_weights_need_no_files(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert resolved(str(model), "dummy").directory == model


def test_pickled_weights_are_refused(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(UsageError, match="pickles run code"):
        resolved(str(model), "auto")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_config_that_is_no_file_is_refused_unread(model: Path, make) -> None:
    (model / "config.json").unlink()
    make(model / "config.json")
    with pytest.raises(UsageError, match=r"config\.json is no file; give the path"):
        resolved(str(model), "auto")


@pytest.mark.parametrize("content", ["", "[]", "{", "{}", '{"model_type": ' + "[" * 100_000])
def test_a_broken_config_is_refused(model: Path, content: str) -> None:
    (model / "config.json").write_text(content)
    with pytest.raises(UsageError, match=r"config\.json"):
        resolved(str(model), "auto")


@pytest.mark.parametrize("index", [{}, {"weight_map": ["model.safetensors"]}])
def test_an_index_without_a_map_is_refused(model: Path, index) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match=r"model\.safetensors\.index\.json has no weight_map"):
        resolved(str(model), "auto")


@pytest.mark.parametrize("shard", ["other.safetensors", "../model.safetensors", "a" * 5000, "a\0b", "\ud800"])
def test_shards_must_be_there_and_inside(model: Path, shard: str) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(UsageError, match="is missing"):
        resolved(str(model), "auto")


@pytest.mark.parametrize("asked", ["nothing-here", "/no/such/dir", "a/b/c", "-x/y"])
def test_what_is_neither_directory_nor_hub_id_is_refused(asked: str) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        resolved(asked, "auto")


def test_a_hub_that_does_not_answer_is_told_with_the_way_out(monkeypatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(UsageError, match=r"'some/model'.*no route to host.*local directory"):
        resolved("some/model", "auto")


def hub(monkeypatch: pytest.MonkeyPatch, model: Path) -> list[dict[str, object]]:
    """A hub that answers with this directory; what it was asked for stands in the list."""
    asked: list[dict[str, object]] = []

    class Info:
        sha = "c0ffee"
        siblings = tuple(RepoSibling(path.name) for path in model.iterdir())

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
    (line,) = capsys.readouterr().err.splitlines()
    assert "DeepSeek-V3: quantization_config: " in line


def test_the_hub_is_asked_for_data_of_one_commit_only(monkeypatch, model: Path) -> None:
    asked = hub(monkeypatch, model)
    found = resolved("some/model@main", "auto")
    assert found.directory == model
    patterns = {"allow_patterns": list(WANTED), "ignore_patterns": ["consolidated*.safetensors"]}
    assert asked[-1] == {"repository": "some/model", "revision": "c0ffee", **patterns}
    assert not any(pattern.endswith((".py", ".bin", ".pt")) for pattern in WANTED)


GGUFS = Path(__file__).parents[1] / "worker/weights/ggufs"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_of_a_gguf_file_a_directory_is_made(run_dir: Path) -> None:
    file = GGUFS / "llama-spm-f16.gguf"
    found = resolve(str(file), "auto", run_dir)
    assert (found.name, found.directory.parent, found.step_tokens) == (str(file), run_dir, 2048)
    assert {path.name for path in found.directory.iterdir()} == {
        "config.json", "tokenizer.json", "tokenizer_config.json", file.name,
    }  # fmt: skip
    assert (found.directory / file.name).samefile(file)


def test_a_folder_with_one_gguf_model_is_that_model(tmp_path: Path, run_dir: Path) -> None:
    folder = tmp_path / "split"
    folder.mkdir()
    for path in GGUFS.glob("qwen3-split*"):
        (folder / path.name).symlink_to(path)
    (folder / "config.json").write_text("{}")
    assert resolve(f"{folder}/", "auto", run_dir).name == str(folder)
    for path in sorted(GGUFS.glob("llama-q*.gguf"))[:5]:
        (folder / path.name).symlink_to(path)
    with pytest.raises(
        UsageError, match=r"several GGUF models; give the path of one: llama-q2_k\.gguf, .*qwen3-split-00001-"
    ):
        resolve(str(folder), "auto", run_dir)
    for number in range(9):
        (folder / f"z{number}.gguf").symlink_to(path)
    with pytest.raises(UsageError, match="and 7 more"):
        resolve(str(folder), "auto", run_dir)


def test_a_folder_with_safetensors_is_what_it_was(model: Path, run_dir: Path) -> None:
    (model / "model.gguf").symlink_to(GGUFS / "llama3-f32.gguf")
    assert resolve(str(model), "auto", run_dir).directory == model


def test_a_gguf_file_that_is_not_served_is_refused_with_its_reason(tmp_path: Path, run_dir: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes((GGUFS / "llama3-f32.gguf").read_bytes()[:2000])
    with pytest.raises(UsageError, match=r"MODEL '.*broken\.gguf': is cut short within its header"):
        resolve(str(broken), "auto", run_dir)
    unknown = tmp_path / "unknown.gguf"
    raw = (GGUFS / "llama3-f32.gguf").read_bytes()
    unknown.write_bytes(raw.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0llamb"))
    with pytest.raises(UsageError, match=r"general\.architecture: 'llamb' is not supported"):
        resolve(str(unknown), "auto", run_dir)
    with pytest.raises(UsageError, match=r"no \*\.safetensors"):
        resolve(str(GGUFS / "llama3-f32.gguf"), "safetensors", run_dir)
    other = tmp_path / "model.bin"
    other.write_bytes(b"")
    with pytest.raises(UsageError, match=r"a file, and neither a directory nor \*\.gguf; give the path of a GGUF file"):
        resolve(str(other), "auto", run_dir)


def test_a_run_directory_without_room_is_named(run_dir: Path) -> None:
    (run_dir / "from-gguf").write_text("in the way")
    with pytest.raises(UsageError, match=r"from-gguf: cannot be written: File exists"):
        resolve(str(GGUFS / "llama3-f32.gguf"), "auto", run_dir)


def test_what_was_made_goes_and_nothing_else(tmp_path: Path) -> None:
    own = tmp_path / "run" / "from-gguf" / "mine.gguf"
    own.parent.mkdir(parents=True, mode=0o700)
    (tmp_path / "run").chmod(0o700)
    own.write_text("a user's file")
    with closing(RunDir(str(tmp_path / "run"))) as run_dir:
        made = resolve(str(GGUFS / "llama3-f32.gguf"), "auto", run_dir.path).directory
        assert len(list(made.iterdir())) == 5
    assert [path.name for path in made.iterdir()] == ["mine.gguf"]
