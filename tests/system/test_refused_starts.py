"""What can never be served is refused at the start: exit code 2, one line that names the cause, no process left."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quire.deploy.__main__ import main

SHARD = "model.safetensors"


@pytest.fixture
def called(capsys) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs one `quire` command in this process: for what is refused before any other starts."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            code = main(list(arguments))
        except SystemExit as end:  # of the parser of the command line
            code = end.code
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return call


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        pytest.param(
            ("--no-enable-chunked-prefill", "--max-num-batched-tokens=64", "--max-num-seqs=8"),
            "max_num_batched_tokens|--max-num-batched-tokens",
            marks=pytest.mark.thorough,
        ),
        (("--device=cuda",), "refused: --device: cuda"),
        pytest.param(
            ("--api-key-file=/dev/null",), "--api-key-file /dev/null: no readable file", marks=pytest.mark.thorough
        ),
        (("--otlp-traces-endpoint=nonsense",), "frontend 0 refused this model or configuration"),
    ],
)
def test_flags_that_cannot_work(quire, tiny_checkpoint, flags, said):
    made = quire("serve", str(tiny_checkpoint()), "--grpc-port=0", "--http-port=0", *flags, fresh=True)
    assert made.returncode == 2, made.stdout + made.stderr
    assert any(word in made.stdout + made.stderr for word in said.split("|"))
    assert "Traceback" not in made.stdout + made.stderr


@pytest.mark.parametrize(
    ("flags", "changes", "said"),
    [
        (("--kv-cache-memory-bytes=99999GiB",), {}, ["--kv-cache-memory-bytes: 97.7 TiB is more than the "]),
        (("--kv-cache-memory-bytes=1",), {}, ["--max-model-len: one sequence of 256 tokens needs "]),
        (("--max-model-len=257",), {}, ["--max-model-len: 257 is more than the model's context length 256"]),
        (
            ("--tensor-parallel-size=3",),
            {"intermediate_size": 96},
            ["num_attention_heads: 4 cannot be divided among 3 ranks", "num_key_value_heads: 2 heads can neither"],
        ),
        ((), {"architectures": ["NoModelForCausalLM"]}, ["'NoModelForCausalLM' is no model of transformers"]),
        (
            ("--model-impl=quire",),
            {
                "quantization_config": {"quant_method": "bitsandbytes"},
                "architectures": ["New"],
                "auto_map": {"AutoModel": "x.py"},
            },
            ["architectures: ['New'] is not", "auto_map: the model brings its own code", "quantization_config: method"],
        ),
        ((), {"rope_scaling": {"rope_type": "longrope"}}, ["long_factor: must be a list of 8 numbers"]),
        ((), {"vocab_size": 1 << 33}, ["vocab_size: "]),
        ((), {"vocab_size": 1 << 30}, ["model: its weights take "]),
    ],
)
def test_what_config_json_alone_decides_is_refused_before_any_process_starts(
    called, tiny_checkpoint, tmp_path, flags, changes, said
):
    """On standard error a sentence for each reason, on standard output nothing but the model's name."""
    shutil.copytree(tiny_checkpoint(), tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    made = called("serve", str(tmp_path / "model"), "--grpc-port=0", "--http-port=0", *flags)
    assert made.returncode == 2, made.stdout + made.stderr
    lines = made.stderr.splitlines()
    assert lines[0].startswith("quire: error: ")
    assert len(lines) == len(said), made.stderr
    for line, words in zip(lines, said, strict=True):
        assert words in line
    assert [line.partition("] ")[2].partition(":")[0] for line in made.stdout.splitlines()] == ["model"]


ANY_PORTS = ("--http-port=0", "--grpc-port=0")
GGUF = "{0}/model.gguf"
YAML = "{0}/serve.yaml"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/no/such/model"], "MODEL '/no/such/model': no such directory, and not a hub id"),
        (
            [GGUF],
            "model.gguf': is not a GGUF file, or it is cut short",
        ),
        (["--config", YAML], "serve.yaml: unknown key 'max-num-sequences'; did you mean 'max-num-seqs'?"),
        (["--config", "/no/such.yaml"], "--config /no/such.yaml: No such file or directory"),
        (["--max-model-length", "8K"], "unknown argument '--max-model-length'; did you mean '--max-model-len'?"),
        (["--max-model-len", "8 KiB"], "argument --max-model-len: expected a whole number"),
        (["--mem-fraction-static", "0.8"], "--mem-fraction-static: use --gpu-memory-utilization"),
        (["--run-dir", "/dev/null/run"], "--run-dir /dev/null/run: Not a directory"),
        (["--http-port", "{1}"], "--host 127.0.0.1 --http-port {1}: Address already in use; name another"),
        (["--http-port", "{2}", "--grpc-port", "{2}"], "--http-port {2}: is --grpc-port, too; name another"),
    ],
)
def test_a_mistake_is_told_in_one_sentence_on_one_screen(called, tmp_path, words, said):
    (tmp_path / "model.gguf").touch()
    (tmp_path / "serve.yaml").write_text("max-num-sequences: 7\n")
    with socket.socket() as taken, socket.socket() as free:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free.bind(("127.0.0.1", 0))
        names = tmp_path, taken.getsockname()[1], free.getsockname()[1]
        free.close()
        made = called("serve", *(word.format(*names) for word in words))
    assert made.returncode == 2, made.stdout + made.stderr
    assert made.stderr.startswith("quire: error: ")
    assert said.format(*names) in made.stderr
    assert made.stderr.count("\n") == 1
    assert len(made.stderr) < 600


@pytest.mark.parametrize(("blocks", "name"), [(0, "lock"), (1, "config.yaml")])
def test_a_full_disk_is_refused_before_any_process_starts(tiny_checkpoint, tmp_path, blocks, name):
    """A limit on the size of files stands for it: their writes fail, those to a pipe do not."""
    serve = [sys.executable, "-P", "-m", "quire.deploy", "serve", str(tiny_checkpoint()), *ANY_PORTS]
    command = ["sh", "-c", f'ulimit -f {blocks} && exec "$@"', "sh", *serve, "--run-dir", str(tmp_path / "r")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 2, made.stdout + made.stderr
    remedy = "make room there or name a directory on another disk"
    assert made.stderr == f"quire: error: --run-dir {tmp_path}/r: {name} cannot be written: File too large; {remedy}\n"


def test_the_configuration_is_printed_when_asked_for(called, tiny_checkpoint):
    made = called("serve", str(tiny_checkpoint()), "--print-config", "--max-num-seqs=7")
    assert made.returncode == 0, made.stderr
    assert "  max_num_seqs: 7\n" in made.stdout
    assert "starting" not in made.stdout


@pytest.fixture
def broken(tiny_checkpoint, tmp_path) -> Path:
    shutil.copytree(tiny_checkpoint(), tmp_path / "model")
    weights = tmp_path / "model" / SHARD
    weights.write_bytes(weights.read_bytes()[:-100])
    return tmp_path / "model"


def test_doctor_and_serve_agree_on_a_cut_off_checkpoint(quire, broken):
    for made in (quire("doctor", str(broken)), quire("serve", str(broken), "--grpc-port=0", "--http-port=0")):
        assert made.returncode in (1, 2)
        assert SHARD in made.stdout + made.stderr
        assert "Traceback" not in made.stdout + made.stderr


def test_doctor_names_a_tensor_of_another_shape(quire, tiny_checkpoint):
    model = tiny_checkpoint()
    changed = model.parent / "changed"
    shutil.copytree(model, changed, dirs_exist_ok=True)
    config = changed / "config.json"
    config.write_text(config.read_text().replace('"intermediate_size": 96', '"intermediate_size": 128'))
    made = quire("doctor", str(changed))
    assert made.returncode == 1
    assert "down_proj.weight" in made.stdout
    assert "[64, 96]" in made.stdout
