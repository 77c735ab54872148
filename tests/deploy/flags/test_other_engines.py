"""Flags of old vLLM releases, llama-server and SGLang: taken with a line, or refused with the feature's reason."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from quire.deploy.__main__ import build_parser
from quire.deploy.flags.arguments import UsageError, gather
from quire.deploy.flags.options import ServeOptions
from quire.deploy.flags.other_arguments import notices
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
        (["--no-flash-attn"], "in tiles"),
        (["--ubatch-size", "512"], "--max-num-batched-tokens"),
        (["-b", "512"], "--max-num-batched-tokens"),
        (["--mmap"], "stay"),
        (["-nocb"], "always share steps"),
        (["-lv", "1"], "--log-level"),
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
    file.write_text("ctx-size: many\n")
    with pytest.raises(UsageError, match=r"serve.yaml: ctx-size: expected a whole number"):
        taken("--config", str(file))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-loras", "4"], "--max-loras: quire serves no adapters yet"),
        (["--max-lora-rank", "16"], "no adapters"),
        (["--speculative-model", "x"], "does not speculate"),
        (["-n", "128"], "llama-server's -n is --n-predict"),
        (["--n-gpu-layers", "20"], "a model is on one device as a whole: say -1, or 99, for the GPU and 0 for the CPU"),
        (["-fa", "/models/x.gguf"], "--flash-attn: expected on, off, auto, true, false, 0, 1, got '/models/x.gguf'"),
        (["--ctx-size", "many"], "argument --ctx-size: expected a whole number"),
        (["--temp", "warm"], "argument --temp: expected a number, got 'warm'"),
        (["--reasoning-format", "xml"], "see --reasoning-parser"),
        (["--lora", "x.gguf"], "no adapters"),
        (["--draft", "4"], "does not speculate"),
        (["-nkvo"], "on one device as a whole"),
        (["-hf", "org/repo"], "write the hub id as MODEL"),
        (["--mmproj", "x.gguf"], "for images give a directory"),
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


MEANT = {
    "-m m.gguf -c 4096 -ngl 99 -t 8 -a x,y": {
        "model": "m.gguf",
        "max_model_len": 4096,
        "num_threads": 8,
        "served_model_name": ("x", "y"),
    },
    "--model-path m --n-gpu-layers -1 --ctx-size 0 --threads -1 --parallel -1 --n-predict -1": {"model": "m"},
    "--gpu-layers auto": {},
    "-ngl 0": {"device": "cpu"},
    "-c 8192 -np 4": {"max_model_len": 2048, "max_num_seqs": 4},
    "-c 8192 -np 4 -kvu": {"max_model_len": 8192, "max_num_seqs": 4},
    "--mlock": {"mlock": True},
    "--chat-template-file t.jinja": {"chat_template": "t.jinja"},
    "--embeddings": {"task": "embed"},
    "--rerank": {"task": "pooling"},
    "--reasoning-format none": {"reasoning_parser": "off"},
    "--ssl-cert-file c --ssl-key-file k": {"ssl_certfile": "c", "ssl_keyfile": "k"},
    "--temp 0 --top-k 40 --top-p 0.9 --min-p 0.05 --repeat-penalty 1.1 --predict 64": {
        "override_generation_config": {
            "temperature": 0.0,
            "top_k": 40,
            "top_p": 0.9,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "max_new_tokens": 64,
        }
    },
    '--override-generation-config {"top_p":0.5,"temperature":1} --n-predict 64 --temp 0.3': {
        "override_generation_config": {"temperature": 1, "max_new_tokens": 64, "top_p": 0.5}
    },
}


def changed(*arguments: str) -> dict[str, object]:
    """What a command line changes; sampling defaults as an object."""
    model, options = gather(build_parser().parse_args(["serve", *arguments]))
    found = asdict(options)
    found = {name: value for name, value in found.items() if value != getattr(ServeOptions(), name)}
    if "override_generation_config" in found:
        found["override_generation_config"] = json.loads(found["override_generation_config"])
    return found | ({"model": model} if model else {})


@pytest.mark.parametrize("words", MEANT)
def test_what_means_an_option_of_ours_is_that_option(words: str) -> None:
    assert changed(*words.split()) == MEANT[words]


def test_a_file_says_them_too_and_the_command_line_beats_it(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        "model-path: m\nctx_size: 8192\nn-gpu-layers: 0\nalias: [x, y]\nembeddings: false\nmin-p: 0.1\n"
        "temperature: 0.5\noverride-generation-config: {temperature: 0.7, top_p: 0.8}\nflash-attn: off\n"
        "max-num-seqs: 9\n"
    )
    said = {"model": "m", "max_model_len": 8192, "device": "cpu", "served_model_name": ("x", "y"), "max_num_seqs": 9}
    defaults = {"temperature": 0.7, "min_p": 0.1, "top_p": 0.8}
    assert changed("--config", str(file)) == {**said, "override_generation_config": defaults}
    assert changed("--config", str(file), "--temp", "0.2", "-np", "3") == {
        **said,
        "max_num_seqs": 3,
        "override_generation_config": {**defaults, "temperature": 0.2},
    }
    given = {"override_generation_config": {"min_p": 0.1, "temperature": 0.5, "top_k": 3}}
    assert changed("--config", str(file), "--override-generation-config", '{"top_k": 3}') == said | given


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("n-gpu-layers: 0", "-ngl 99"),
        ("n-gpu-layers: 0", "--gpu-layers all"),
        ("device: cpu", "-ngl 99"),
        ("n-predict: 5", "--n-predict -1"),
        ("override-generation-config: {max_new_tokens: 5}", "--predict -2"),
        ("parallel: 3", "-np -1"),
        ("max-model-len: 512", "-c -1"),
        ("reasoning-format: none", "--reasoning-format auto"),
    ],
)
def test_a_default_on_the_command_line_beats_the_file(tmp_path: Path, file: str, words: str) -> None:
    (tmp_path / "serve.yaml").write_text(file)
    assert changed("--config", str(tmp_path / "serve.yaml"))
    assert not any(changed("--config", str(tmp_path / "serve.yaml"), *words.split()).values())


def test_every_flag_says_why() -> None:
    assert not [name for name, flag in OTHER_FLAGS.items() if not flag.why or name.startswith("-")]
