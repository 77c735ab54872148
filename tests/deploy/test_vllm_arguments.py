"""Arguments of `vllm serve` as they stand in commands, container and cluster files, through the real parser."""

import shlex
from dataclasses import fields

import huggingface_hub
import pytest

from quire.deploy.__main__ import build_parser, main
from quire.deploy.flags.arguments import gather
from quire.deploy.flags.options import ServeOptions

MODULE = """python -m vllm.entrypoints.openai.api_server --model /models/Llama-3.1-8B-Instruct --host 0.0.0.0
    --port 9000 --tensor-parallel-size 2 --gpu-memory-utilization 0.95 --max-model-len 8192 --dtype bfloat16
    --served-model-name llama --disable-log-requests"""
DOCKER = """docker run --runtime nvidia --gpus all -v ~/.cache/huggingface:/root/.cache/huggingface -p 8000:8000
    --ipc=host vllm/vllm-openai:latest --model mistralai/Mistral-7B-v0.1 --dtype=half --max_model_len 4096
    --enforce-eager --swap-space 0"""
COMMANDS = {
    "module": (
        MODULE.split("api_server", 1)[1],
        "/models/Llama-3.1-8B-Instruct",
        {
            "host": "0.0.0.0",
            "http_port": 9000,
            "tensor_parallel_size": 2,
            "gpu_memory_utilization": 0.95,
            "max_model_len": 8192,
            "dtype": "bfloat16",
            "served_model_name": ("llama",),
        },
    ),
    "docker": (
        DOCKER.split(":latest", 1)[1],
        "mistralai/Mistral-7B-v0.1",
        {"dtype": "half", "max_model_len": 4096, "enforce_eager": True},
    ),
}


def built(**settings: object) -> list[str]:
    """The words a deployment script makes of its settings."""
    words: list[str] = []
    for name, value in settings.items():
        words.append(f"--{name}")
        if value is not True:
            words.append(str(value))
    return words


def serve(*words: str) -> tuple[str, dict[str, object]]:
    """MODEL and what differs from the defaults."""
    model, options = gather(build_parser().parse_args(["serve", *words]))
    changed = {field.name: getattr(options, field.name) for field in fields(options)}
    return model, {name: value for name, value in changed.items() if value != getattr(ServeOptions(), name)}


@pytest.mark.parametrize("where", COMMANDS)
def test_the_arguments_of_a_command_are_taken_as_they_are(where: str) -> None:
    words, model, options = COMMANDS[where]
    assert serve(*shlex.split(words)) == (model, options)


def test_a_list_of_strings_is_taken_as_it_is() -> None:
    words = built(
        model="meta-llama/Llama-3.1-8B",
        port=8001,
        max_num_batched_tokens=1024,
        enable_chunked_prefill=True,
        gpu_memory_utilization=0.9,
        api_server_count=2,
    )
    assert serve(*words) == (
        "meta-llama/Llama-3.1-8B",
        {"http_port": 8001, "max_num_batched_tokens": 1024, "gpu_memory_utilization": 0.9, "frontends": 2},
    )


@pytest.mark.parametrize(
    "words",
    [["m"], ["--model", "m"], ["--model=m"], ["m", "--model", "m"], ["--model", "m", "m"], ["--seed", "0", "m"]],
)
@pytest.mark.parametrize("command", ["serve", "bench offline", "bench latency"])
def test_model_is_named_by_place_or_by_flag_or_by_both_alike(command: str, words: list[str]) -> None:
    assert gather(build_parser().parse_args([*command.split(), *words]))[0] == "m"


@pytest.mark.parametrize("words", [["m"], ["--model", "m"], ["m", "--model=m"]])
def test_the_doctor_too(words: list[str]) -> None:
    assert build_parser().parse_args(["doctor", *words]).model == "m"


@pytest.mark.parametrize("command", ["serve", "bench offline", "bench latency", "doctor"])
@pytest.mark.parametrize("words", [["a", "--model", "b"], ["--model", "a", "b"], ["--model", "a", "--model", "b"]])
def test_two_models_are_refused_in_one_sentence(capsys, command: str, words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        build_parser().parse_args([*command.split(), *words])
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "MODEL" in printed
    assert "'a'" in printed
    assert "'b'" in printed


@pytest.mark.parametrize("words", [[""], ["--model", ""], ["--model="]])
def test_the_empty_word_of_an_unset_variable_is_no_model(capsys, words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        build_parser().parse_args(["serve", *words])
    assert stop.value.code == 2
    assert "leave it out for the embedded model" in capsys.readouterr().err


def test_the_flag_beats_the_file_as_the_word_does(tmp_path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("model: some/model\n")
    assert serve("--config", str(file))[0] == "some/model"
    assert serve("--config", str(file), "--model", "other")[0] == "other"


def test_a_hub_id_that_is_not_here_is_refused_as_the_word_is(capsys, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    printed_lines = []
    for words in (["mistralai/Mistral-7B-v0.1"], ["--model", "mistralai/Mistral-7B-v0.1"]):
        assert main(["serve", *words]) == 2
        printed_lines.append(capsys.readouterr().err)
    assert printed_lines[0] == printed_lines[1]
    assert printed_lines[0].startswith("quire: error: MODEL 'mistralai/Mistral-7B-v0.1': neither a directory here")


def test_flags_may_be_written_with_underscores_and_values_stay_what_they_are() -> None:
    assert serve("--max_model_len=8K", "--served_model_name", "my_name")[1] == {
        "max_model_len": 8192,
        "served_model_name": ("my_name",),
    }
    parsed = build_parser().parse_args(["generate", "--max_tokens", "3", "--", "--my_prompt"])
    assert (parsed.max_tokens, parsed.text) == (3, "--my_prompt")


@pytest.mark.parametrize("words", [["--model", "Q/M", "--hf-key", "sk-secret"], ["Q/M", "--hf_key=sk-secret"]])
def test_the_value_of_an_unknown_flag_is_no_second_model_and_is_not_printed(words, capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", *words])
    error = capsys.readouterr().err
    assert "secret" not in error
    assert "given twice" not in error


TAKEN = {
    "-pp 1": {},
    "--pipeline-parallel-size 1": {},
    "-dp 1": {},
    "-dp=1": {},
    "-dcp 1": {},
    "-pcp 1": {},
    "--nnodes 1": {},
    "-n 1 -r 0": {},
    "--node-rank 0": {},
    "-tp 2": {"tensor_parallel_size": 2},
    "-tp=2": {"tensor_parallel_size": 2},
    "-asc 2": {"frontends": 2},
    "-q int8": {"quantization": "int8"},
    "--kv-cache-dtype fp8": {"kv_cache_dtype": "fp8"},
    "--kv-cache-dtype fp8_e4m3": {"kv_cache_dtype": "fp8_e4m3"},
    "--kv-cache-dtype bfloat16": {"kv_cache_dtype": "bfloat16"},
    "--kv-cache-dtype int8_per_token_head": {"kv_cache_dtype": "int8_per_token_head"},
    "--max-model-len auto": {},
    "--max-model-len -1": {},
    "--max-model-len=-1": {},
    "--max-model-len 32k": {"max_model_len": 32_000},
    "--max-model-len 32K": {"max_model_len": 32_768},
    "--max-model-len 16Ki": {"max_model_len": 16_384},
    "--max-model-len 25.6k": {"max_model_len": 25_600},
    "--max-model-len 1M": {"max_model_len": 1 << 20},
    "--max-model-len=8192": {"max_model_len": 8192},
    "--gpu-memory-utilization .9": {"gpu_memory_utilization": 0.9},
    "--dtype half": {"dtype": "half"},
    "--load-format safetensors": {"load_format": "safetensors"},
    "--enforce-eager": {"enforce_eager": True},
    "--disable-log-requests": {},
    "--port=8000": {},
    "--served-model-name a b": {"served_model_name": ("a", "b")},
}


@pytest.mark.parametrize("words", TAKEN)
def test_a_flag_that_means_the_same_or_nothing_here_is_taken(words: str) -> None:
    assert serve("m", *words.split()) == ("m", TAKEN[words])


REFUSED = {
    "-pp 2": "--pipeline-parallel-size: quire has no pipeline parallelism; --tensor-parallel-size shares every layer",
    "-dp 2": "--data-parallel-size: quire has no data parallelism; start one `quire serve` per replica",
    "-dcp 2": "--decode-context-parallel-size: quire shares no context over devices; use --tensor-parallel-size",
    "--nnodes 2": "--nnodes: quire runs on one host; start one `quire serve` per host",
    "-r 1": "--node-rank: quire runs on one host",
    "--headless": "--headless: quire runs on one host",
    "--master-addr 10.0.0.1": "--master-addr: quire runs on one host",
    "-O3": "--optimization-level: there are no levels; leave it out, or say --enforce-eager",
    "-O 3": "--optimization-level: there are no levels",
    "-O=3": "--optimization-level: there are no levels",
    "-O.mode=3": "--optimization-level: there are no levels",
    "-cc {}": "--compilation-config: ",
    "-sc {}": "--speculative-config: quire does not speculate yet",
    "--kv-cache-dtype fp8_e5m2": "--kv-cache-dtype: fp8_e5m2 is not served: it rounds to two bits of mantissa; use fp8",
    "--kv-cache-dtype fp8_per_token_head": "fp8_per_token_head is not served: 8-bit floats have scales of tensors or",
    "--kv-cache-dtype nvfp4": "invalid choice: 'nvfp4' (choose from ",
    "--max-model-len 1.5": "expected a whole number",
    "--convert mm_encoder_only": "--convert: a head is never made up; see --task",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_flag_for_what_is_missing_is_answered_with_one_sentence_about_it(capsys, words: str) -> None:
    with pytest.raises(SystemExit) as stop:
        serve("m", *words.split())
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert REFUSED[words] in printed
    assert "did you mean" not in printed


@pytest.mark.parametrize("words", ["-y 2", "-d 2", "-p 2", "-xy 1", "--wrong x"])
def test_a_flag_that_nobody_knows_is_not_taken_for_another(capsys, words: str) -> None:
    with pytest.raises(SystemExit):
        serve("m", *words.split())
    printed = capsys.readouterr().err
    assert f"unknown argument {words.split()[0]!r}  (see" in printed


def test_the_file_says_the_same(tmp_path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("max-model-len: auto\nkv-cache-dtype: fp8_e4m3\nnnodes: 1\nenable-lora: false\n")
    assert serve("--config", str(file))[1] == {"kv_cache_dtype": "fp8_e4m3"}
