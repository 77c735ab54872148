"""`--hf-overrides`: every process reads the fields, the files stay as they were, and a misspelt field is refused."""

import json
from pathlib import Path

import pytest

from quire.deploy.__main__ import build_parser, main
from quire.deploy.flags.arguments import UsageError, gather
from quire.deploy.model_path import resolve
from quire.deploy.overrides import merged, origin
from quire.deploy.supervisor.rundir import RunDir
from quire.worker.weights.revision import model_revision

GGUF = Path(__file__).parents[1] / "worker/weights/ggufs/llama-q8_0.gguf"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "rope_theta": 1e4,
    "bos_token_id": 1,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "text_config": {"hidden_size": 8, "num_hidden_layers": 2},
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    (directory / "1_Pooling").mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "1_Pooling/config.json").write_text("{}")
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"weights")
    return directory


def test_all_files_but_one_are_the_models_own(model: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    for theta in (5.0, 6.0):  # a run directory may be used again
        found = resolve(str(model), "auto", run_dir, overrides=json.dumps({"rope_theta": theta}))
        assert (found.name, found.directory.parent) == (str(model), run_dir)
        assert json.loads((found.directory / "config.json").read_text()) == {**CONFIG, "rope_theta": theta}
    assert json.loads((model / "config.json").read_text()) == CONFIG
    assert (found.directory / "model.safetensors").read_bytes() == b"weights"
    assert (found.directory / "1_Pooling/config.json").is_file()
    assert origin(found.directory) == model
    assert origin(model) == model
    assert model_revision(found.directory) != model_revision(model)  # ranks and prefix keys tell them apart


def test_the_folder_that_is_made_of_a_gguf_file_takes_them_too(tmp_path: Path) -> None:
    revisions = set()
    for overrides in ("", '{"rope_theta": 5.0}', '{"rope_theta": 6.0}', ""):  # a run directory may be used again
        found = resolve(str(GGUF), "auto", tmp_path, overrides=overrides)
        config = json.loads((found.directory / "config.json").read_text())
        assert config["rope_theta"] == json.loads(overrides or '{"rope_theta": 10000.0}')["rope_theta"]
        assert (found.directory / GGUF.name).readlink() == GGUF
        revisions.add(model_revision(found.directory))
    assert len(revisions) == 3
    with pytest.raises(UsageError, match=r"--hf-overrides: rope_thetta is no field .* did you mean rope_theta"):
        resolve(str(GGUF), "auto", tmp_path, overrides='{"rope_thetta": 5.0}')


def test_sections_are_merged_and_all_else_is_replaced() -> None:
    fields = {"text_config": {"hidden_size": 16}, "rope_scaling": {"rope_type": "default"}, "eos_token_id": 7}
    assert merged(CONFIG, fields) == {
        **CONFIG,
        "text_config": {"hidden_size": 16, "num_hidden_layers": 2},
        "rope_scaling": {"rope_type": "default"},
        "eos_token_id": 7,
    }
    assert merged({"quantization_config": {"bits": 4, "x": 1}}, {"quantization_config": {"bits": 8}}) == {
        "quantization_config": {"bits": 8}
    }


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({"rope_thetta": 1e6}, "rope_thetta is no field of config.json; did you mean rope_theta"),
        (
            {"text_config": {"hiden_size": 4}},
            "text_config.hiden_size is no field .* did you mean text_config.hidden_size",
        ),
    ],
)
def test_a_misspelt_field_is_refused(fields: dict[str, object], meant: str) -> None:
    with pytest.raises(UsageError, match=f"--hf-overrides: {meant}"):
        merged(CONFIG, fields)


def test_a_start_that_is_refused_leaves_nothing_of_it(model: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    held = RunDir(str(run_dir))
    resolve(str(model), "auto", run_dir, overrides='{"rope_theta": 7.0}')
    assert (run_dir / "overridden" / "config.json").exists()
    held.close()
    assert {path.name for path in run_dir.iterdir()} == {"lock"}
    (run_dir / "overridden").mkdir()
    (run_dir / "overridden" / "mine").write_text("kept")
    RunDir(str(run_dir)).close()
    assert (run_dir / "overridden" / "mine").read_text() == "kept"
    (run_dir / "overridden").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "config.json").write_text("kept")
    (run_dir / "overridden").symlink_to(tmp_path / "elsewhere")
    RunDir(str(run_dir)).close()
    assert (tmp_path / "elsewhere" / "config.json").read_text() == "kept"


def test_a_config_that_does_not_read_is_refused(model: Path, tmp_path: Path) -> None:
    (model / "config.json").write_text("[1]")
    with pytest.raises(UsageError, match=r"config.json must hold a JSON object"):
        resolve(str(model), "auto", tmp_path, overrides='{"a": 1}')


@pytest.mark.parametrize("command", ["serve", "doctor"])
@pytest.mark.parametrize("flag", ["--hf-overrides", "--hf_overrides", "--json-model-override-args"])
def test_other_spellings_mean_the_same(flag: str, command: str) -> None:
    fields = '{"max_position_embeddings": 77}'
    assert gather(build_parser().parse_args([command, "m", flag, fields]))[1].hf_overrides == fields


def test_the_doctor_judges_by_the_fields(tiny_checkpoint, capsys) -> None:
    folder = tiny_checkpoint()
    assert main(["doctor", str(folder), "--device", "cpu", "--hf-overrides", '{"max_position_embeddings": 77}']) == 0
    out = capsys.readouterr().out
    assert str(folder) in out
    assert "context length" in out
    assert " 77" in out.partition("context length")[2].splitlines()[0]
    assert main(["doctor", str(folder), "--device", "cpu", "--hf-overrides", '{"architectures": ["Weird"]}']) == 1
    assert "'Weird'" in capsys.readouterr().out


def test_the_doctor_names_what_was_given_and_no_directory_of_its_own(tiny_checkpoint, capsys) -> None:
    folder = tiny_checkpoint()
    for given in (folder, GGUF):
        assert main(["doctor", str(given), "--device", "cpu", "--hf-overrides", '{"num_hidden_layers": 3}']) == 1
        assert f"{given} lacks the tensors for blocks.2" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["doctor", "serve"])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": "x"}, "vocab_size: config.json must state a positive integer"),
        ({"architectures": None, "model_type": None}, "names neither `architectures` nor `model_type`"),
    ],
)
def test_a_refusal_names_the_model_that_was_given(command, fields, message, tiny_checkpoint, capsys) -> None:
    folder = tiny_checkpoint()
    assert main([command, str(folder), "--device", "cpu", "--hf-overrides", json.dumps(fields)]) != 0
    found = "".join(capsys.readouterr())
    assert message in found
    assert str(folder) in found
    assert "/overridden" not in found


def test_a_number_of_too_many_digits_is_not_repeated_whole(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--hf-overrides", f'{{"rope_theta": {"7" * 6000}}}'])
    assert "...'" in (found := capsys.readouterr().err)
    assert found.count("7") < 100
