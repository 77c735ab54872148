"""MODEL as a hub id, against the cache that huggingface_hub reads, and a hub that says what it has."""

import json
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.hf_api import RepoSibling

from quire.deploy.__main__ import main
from quire.deploy.flags.arguments import UsageError
from quire.deploy.hub import HubId, gguf_files, read_id
from quire.deploy.model_path import resolve

GGUFS = Path(__file__).parents[1] / "worker/weights/ggufs"
COMMIT = "c0ffee" * 6 + "c0ff"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Lays out a repository as `hf download` leaves it, where no hub answers: links to blobs, by the digest."""

    def make(repository, files):
        home = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
        snapshot = home / "snapshots" / COMMIT
        (home / "refs").mkdir(parents=True)
        (home / "blobs").mkdir()
        (home / "refs" / "main").write_text(COMMIT)
        for number, (name, content) in enumerate(files.items()):
            (home / "blobs" / str(number)).write_bytes(content)
            (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
            (snapshot / name).symlink_to(home / "blobs" / str(number))
        return snapshot

    def offline(*_, **__):
        raise OfflineModeIsEnabled("offline")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", offline)
    (tmp_path / "run").mkdir()
    return make


Q8, Q4 = (f"Tiny-{name}.gguf" for name in ("Q8_0", "Q4_0"))
SPLIT = [f"BF16/Tiny-BF16-{number:05}-of-00002.gguf" for number in (1, 2)]
CONTENTS = {
    Q8: (GGUFS / "llama-q8_0.gguf").read_bytes(),
    Q4: (GGUFS / "llama-q4_0.gguf").read_bytes(),
    **{name: path.read_bytes() for name, path in zip(SPLIT, sorted(GGUFS.glob("qwen3-split*")), strict=True)},
    "mmproj-Tiny-F16.gguf": b"a tower",
    "imatrix.gguf": b"what a quantization weighed",
}


@pytest.mark.parametrize(
    ("given", "file", "architecture"),
    [
        ("some/tiny-GGUF:Q8_0", Q8, "llama"),
        ("some/tiny-GGUF:q4_0", Q4, "llama"),
        (f"some/tiny-GGUF@main:{Q4}", Q4, "llama"),
        ("some/tiny-GGUF:BF16", SPLIT[0], "qwen3"),
    ],
)
def test_a_cached_repository_of_gguf_files_is_the_model_that_is_named(given, file, architecture, cache, tmp_path):
    snapshot = cache("some/tiny-GGUF", CONTENTS)
    found = resolve(given, "auto", tmp_path / "run")
    assert found.name == given
    assert json.loads((found.directory / "config.json").read_text())["model_type"] == architecture
    assert (found.directory / Path(file).name).samefile(snapshot / file)


def test_the_only_model_of_a_repository_needs_no_name(cache, tmp_path):
    cache("some/tiny-GGUF", {Q8: CONTENTS[Q8], "mmproj-Tiny-F16.gguf": b"", "README.md": b""})
    assert resolve("some/tiny-GGUF", "auto", tmp_path / "run").name == "some/tiny-GGUF"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("some/tiny-GGUF", r"holds several GGUF models; write one behind the id: :BF16, :Q4_0, :Q8_0$"),
        ("some/tiny-GGUF:Q4_K_M", r"holds no GGUF models of 'Q4_K_M'; write one behind the id: :BF16, :Q4_0, :Q8_0$"),
    ],
)
def test_several_models_are_named_by_what_is_written_behind_the_id(given, says, cache, tmp_path):
    cache("some/tiny-GGUF", CONTENTS)
    with pytest.raises(UsageError, match=says):
        resolve(given, "auto", tmp_path / "run")


def test_names_of_published_files():
    """As bartowski, unsloth, ggml-org and MaziyarPanahi call theirs."""
    names = [
        "gemma-3-4b-it-Q4_K_M.gguf", "gemma-3-4b-it-UD-Q4_K_XL.gguf", "gemma-3-4b-it.Q5_K_S.gguf", "gpt-oss-mxfp4.gguf",
        "gemma-3-4b-it-f16.gguf", "x/IQ4_XS/a-IQ4_XS-00001-of-00002.gguf", "x/IQ4_XS/a-IQ4_XS-00002-of-00002.gguf",
        "model-fp16.gguf", "a-q4_0_4_4.gguf", "tiny.gguf", "mmproj-F32.gguf",
    ]  # fmt: skip
    for asked in ("Q4_K_M", "UD-Q4_K_XL", "Q5_K_S", "MXFP4", "F16", "fp16", "q4_0_4_4", "tiny", "model-fp16.gguf"):
        assert len(gguf_files(HubId("a/b", None, asked), names)) == 1, asked
    assert len(gguf_files(HubId("a/b", None, "iq4_xs"), names)) == 2
    assert gguf_files(HubId("a/b"), ["model.safetensors", *names]) == []
    assert gguf_files(HubId("a/b", None, "f16"), ["model.safetensors", *names]) == [names[4]]
    with pytest.raises(UsageError, match=r"several GGUF models of 'Q8_0'; .* :one-Q8_0\.gguf, :two-Q8_0\.gguf"):
        gguf_files(HubId("a/b", None, "Q8_0"), ["two-Q8_0.gguf", "one-Q8_0.gguf"])
    with pytest.raises(UsageError, match="holds no GGUF models of 'Q8_0'; leave it out"):
        gguf_files(HubId("a/b", None, "Q8_0"), ["model.safetensors"])
    assert read_id("some/model:") is read_id("model:Q4_0") is None


@pytest.fixture
def hub(monkeypatch):
    """A hub that has files of these names; answers with what is fetched of it."""

    def make(names, folder):
        fetched = []

        class Info:
            sha = COMMIT
            siblings = tuple(map(RepoSibling, names))

        def download(repository, **how):
            if not how.get("local_files_only"):
                fetched.append(how["allow_patterns"])
            return str(folder)

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: Info())
        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        return fetched

    return make


def test_of_a_repository_of_gguf_files_one_is_fetched(cache, hub, tmp_path, capsys):
    snapshot = cache("some/tiny-GGUF", {Q8: CONTENTS[Q8]})
    fetched = hub([*CONTENTS, "config.json"], snapshot)
    assert main(["doctor", "some/tiny-GGUF:Q4_0"]) == 1
    said = capsys.readouterr().out
    assert f"{Q4} says what the model is, and is not here yet; `hf download some/tiny-GGUF {Q4}` fetches it" in said
    assert fetched == []
    resolve("some/tiny-GGUF:Q8_0", "auto", tmp_path / "run")
    assert fetched == [[Q8]]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["pytorch_model.bin"], "pickles run code; `quire convert some/model OUT` makes"),
        (["pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"], "`quire convert some/model OUT`"),
        (["adapter_config.json", "adapter_model.safetensors"], "an adapter, .* merge it into its base model"),
        (["adapter_config.json", "adapter_model.bin"], "an adapter, .* merge it into its base model"),
        (["consolidated.00.pth", "params.json"], r"consolidated\.00\.pth is in the layout of its makers"),
        (["consolidated.safetensors", "params.json"], r"consolidated\.safetensors is in the layout of its makers"),
        (["tf_model.h5"], r"tf_model\.h5 is of TensorFlow, which is not read; serve a repository that has"),
        (["flax_model-00001-of-00002.msgpack"], "is of Flax"),
        (["onnx/model.onnx"], "is of ONNX"),
        (["model_index.json", "unet/diffusion_pytorch_model.safetensors"], "a pipeline of diffusers"),
        (["model.pth"], r"model\.pth is pickled, .* reads pytorch_model\.bin alone"),
    ],
)
def test_a_repository_without_weights_that_are_served_says_what_to_do(names, says, cache, hub, tmp_path):
    snapshot = cache("some/model", {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}"})
    fetched = hub(["config.json", "tokenizer.json", *names], snapshot)
    with pytest.raises(UsageError, match=f"MODEL 'some/model': .*{says}"):
        resolve("some/model", "auto", tmp_path / "run")
    assert not any("*.safetensors" in patterns for patterns in fetched)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("pytorch_model.bin", "`quire convert {} OUT` makes"),
        ("adapter_config.json", "an adapter"),
        ("consolidated.00.pth", "layout of its makers"),
    ],
)
def test_so_does_a_local_directory(name, says, tmp_path):
    (tmp_path / name).touch()
    with pytest.raises(UsageError, match=says.format(tmp_path)):
        resolve(str(tmp_path), "auto", tmp_path / "run")


def test_doctor_says_it_beside_all_else(cache, tmp_path, capsys):
    cache("some/model", {"config.json": b'{"architectures": ["Unheard"]}', "pytorch_model.bin": b""})
    assert main(["doctor", "some/model", "--device", "cpu"]) == 1
    said = capsys.readouterr().out
    assert "`quire convert some/model OUT` makes" in said
    assert "Unheard" in said


def test_dummy_weights_are_not_fetched(cache, hub, tmp_path):
    config = json.dumps({"architectures": ["LlamaForCausalLM"]}).encode()
    snapshot = cache("some/model", {"config.json": config, "tokenizer.json": b"{}"})
    fetched = hub(["config.json", "tokenizer.json", "pytorch_model.bin"], snapshot)
    assert resolve("some/model", "dummy", tmp_path / "run").directory == snapshot
    assert not any("*.safetensors" in patterns for patterns in fetched)
