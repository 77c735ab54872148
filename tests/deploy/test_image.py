"""The image: what stands behind its name in the usual lines goes through its entry point; its files are sound.

No container runs here: the entry point does, and the files are parsed.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from quire.deploy import container
from quire.deploy.__main__ import build_parser
from quire.deploy.commands import gpu_needs
from quire.deploy.supervisor.engine_spec import Timers

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
MODEL = str(DEPLOY / "model")
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
FINAL = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :].replace("\\\n", " ")
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"]
HUB = "-v ~/.cache/huggingface:/root/.cache/huggingface"

LINES = {
    f"docker run --runtime nvidia --gpus all {HUB} --env HF_TOKEN -p 8000:8000 --ipc=host IMAGE --model MODEL": {},
    f"docker run --gpus all {HUB} -p 8000:8000 --ipc=host IMAGE MODEL --max-model-len 1K": {"max_model_len": 1024},
    "docker run --gpus all --shm-size 8g -p 8000:8000 IMAGE --model MODEL --tensor-parallel-size 2 --dtype bfloat16"
    " --gpu-memory-utilization 0.9 --disable-log-requests --swap-space 0": {"tensor_parallel_size": 2},
    "docker run IMAGE vllm serve MODEL --max-num-seqs 7": {"max_num_seqs": 7},
    "docker run IMAGE quire serve MODEL --max-num-seqs=7": {"max_num_seqs": 7},
    "docker run IMAGE serve MODEL": {},
    "docker run IMAGE python3 -m vllm.entrypoints.openai.api_server --model MODEL --port 9000": {"http_port": 9000},
    "docker run -p 8080:8080 IMAGE -m MODEL -c 512 --host 0.0.0.0 --port 8080 --n-gpu-layers 99": {
        "max_model_len": 512,
        "http_port": 8080,
    },
    "docker run IMAGE python -m quire.entrypoints.openai.api_server --model MODEL": {},
    "docker run IMAGE python3 -m vllm.entrypoints.cli.main serve MODEL": {},
    "docker run IMAGE python -m quire MODEL": {},
    "docker run IMAGE": {},
}
REFUSED = {
    "docker run --gpus all -p 8080:80 -v $PWD/data:/data IMAGE --model-id MODEL": "--model-id: write the directory",
    "docker run --gpus all --shm-size 1g IMAGE --num-shard 2 --model MODEL": "--num-shard: use --tensor-parallel-size",
    "docker run -v ./models:/models -p 8080:8080 IMAGE -m /models/7B.gguf -c 512 --host 0.0.0.0 --port 8080"
    " --n-gpu-layers 99": "MODEL '/models/7B.gguf': no such",
    "docker run -p 8080:8080 IMAGE -hf ggml-org/gemma-3-1b-it-GGUF": "--hf-repo: write the hub id as MODEL",
    "docker run IMAGE python3 -m sglang.launch_server --model-path MODEL": "sglang.launch_server; use `quire serve`",
    "docker run IMAGE python -m vllm.entrypoints.openai.run_batch -i a -o b": "run_batch; use `quire run-batch`",
    "docker run IMAGE bash": "MODEL 'bash': no such directory",
}


def arguments(line: str) -> list[str]:
    """What docker hands to the entry point."""
    words = shlex.split(line.replace("MODEL", MODEL))
    return words[words.index("IMAGE") + 1 :]


@pytest.mark.parametrize("line", LINES)
def test_the_arguments_of_a_usual_line_start_an_engine_on_every_interface(line, monkeypatch, capsys) -> None:
    """Of both families, where the kernel has them."""
    has_ipv6 = "MODEL" in line
    monkeypatch.setattr(container, "has_ipv6", lambda: has_ipv6)
    assert container.main([*(arguments(line) or ["serve"]), "--print-config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    fields = printed["frontend"] | printed["scheduler"] | printed["worker"]
    assert fields["model"] == MODEL
    assert printed["frontend"]["host"] == ("::" if has_ipv6 and "--host" not in line else "0.0.0.0")
    assert {name: fields[name] for name in LINES[line]} == LINES[line]


@pytest.mark.parametrize("line", REFUSED)
def test_what_another_image_takes_and_this_one_does_not_is_named_with_ours(line, capsys) -> None:
    try:
        code = container.main([*arguments(line), "--print-config"])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert REFUSED[line] in printed


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["doctor"], ["bench", "serve"], ["generate", "x"]])
def test_other_commands_of_quire_are_themselves(words) -> None:
    assert container.command(words) == container.command(["quire", *words]) == words


@pytest.mark.parametrize("given", ["flag", "file"])
def test_an_address_that_was_given_is_kept(given, tmp_path, capsys) -> None:
    (tmp_path / "engine.yaml").write_text("host: 127.0.0.5\n")
    said = ["--host", "127.0.0.5"] if given == "flag" else ["--config", str(tmp_path / "engine.yaml")]
    assert container.main([*said, "--print-config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["frontend"]["host"] == "127.0.0.5"


def test_the_entry_point_says_where_it_listens_and_refuses_what_kernels_lack(tmp_path) -> None:
    """As a process, on a machine without a compiler and with nowhere to keep kernels."""
    (words,) = re.findall(r"^ENTRYPOINT (\[.*\])$", FINAL, re.MULTILINE)
    tini, dashes, python, *rest = json.loads(words)
    assert (tini, dashes, python) == ("tini", "--", "python")
    given = {name: value for name, value in os.environ.items() if name != "CC"}
    done = subprocess.run(
        [sys.executable, *rest, "--model", MODEL, "--device", "cuda", "--port", "0", "--grpc-port", "0"],
        env=given | {"PATH": str(tmp_path), "TRITON_CACHE_DIR": "/dev/null/triton"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    said = f"--host {container.every_interface()}: listens on every interface of this container"
    assert said in done.stdout.splitlines()[0]
    first, second = done.stderr.splitlines()
    assert first.startswith("quire: error: TRITON_CACHE_DIR: /dev/null/triton cannot be written to")
    assert "CC: kernels on a GPU need a C compiler" in second


def test_a_cache_that_may_not_be_executed_from_is_refused(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("CC", "cc")
    assert list(gpu_needs.lacking()) == []
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    (refusal,) = gpu_needs.lacking()
    assert "is mounted noexec" in refusal


@pytest.mark.parametrize(("megabytes", "ranks", "warned"), [(64, 2, True), (64, 1, False), (1024, 2, False)])
def test_shared_memory_of_a_container_that_was_told_no_size_is_warned_of(monkeypatch, megabytes, ranks, warned) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_blocks=megabytes, f_frsize=1 << 20))
    lines = list(gpu_needs.doubts(ranks))
    assert [line.startswith("warning: /dev/shm has 64 MiB, too little for NCCL between 2 ranks") for line in lines] == (
        [True] if warned else []
    )


def test_the_hubs_cache_is_read_where_another_image_mounts_it(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HF_HOME", "/cache/huggingface")
    monkeypatch.setattr(container, "HUB_CACHE", tmp_path / "none")
    container.find_hub_cache()
    assert os.environ["HF_HOME"] == "/cache/huggingface"
    monkeypatch.setattr(container, "HUB_CACHE", tmp_path)
    container.find_hub_cache()
    assert os.environ["HF_HOME"] == str(tmp_path)


def test_the_image_has_what_its_kernels_need_and_no_root() -> None:
    known = {"FROM", "RUN", "COPY", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT"}
    lines = [line for line in FINAL.splitlines() if line and not line.startswith("#")]
    assert {line.split()[0] for line in lines} == known
    assert {"gcc", "libc6-dev", "libgomp1", "tini"} <= set(FINAL.split())
    (user,) = re.findall(r"^USER (\d+)$", FINAL, re.MULTILINE)
    assert int(user) >= 1000
    settings = dict(word.split("=", 1) for line in lines if line.startswith("ENV ") for word in line.split()[1:])
    (writable,) = re.findall(r"^VOLUME (\S+)$", FINAL, re.MULTILINE)
    for name in ("TRITON_CACHE_DIR", "HF_HOME"):
        assert Path(settings[name]).is_relative_to(writable)
    assert f"install -d -m 1777 {writable}" in FINAL
    ignored = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().split()
    assert not {"deploy", "setup.py", "constraints.txt"} & set(ignored)


@pytest.mark.parametrize("name", ["quire-cpu", "quire-gpu"])
def test_the_engines_of_the_compose_file(name) -> None:
    service = COMPOSE[name]
    build_parser().parse_args(
        container.command([re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in service["command"]])
    )
    assert service["profiles"] == [name.removeprefix("quire-")]
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    timers = Timers()
    ends = timers.drain + timers.drain_margin + timers.stop_grace
    assert ends < int(service["stop_grace_period"].removesuffix("s"))
    health = service["healthcheck"]
    assert health["start_period"] == f"{timers.startup:.0f}s"
    assert health["test"][:3] == ["CMD", "python", "-c"]
    compile(health["test"][3], "healthcheck", "exec")
    assert "http://127.0.0.1:8000/health" in health["test"][3]


def test_the_engine_on_gpus_has_devices_models_and_shared_memory() -> None:
    service = COMPOSE["quire-gpu"]
    (devices,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (devices["driver"], devices["capabilities"]) == ("nvidia", ["gpu"])
    mounted = {volume.rpartition(":/")[2].removesuffix(":ro") for volume in service["volumes"]}
    assert mounted == {"models", "cache"}
    assert int(service["shm_size"].removesuffix("gb")) << 30 > gpu_needs.LEAST_SHARED_BYTES


def test_the_probes_of_the_page_wait_for_a_start_and_do_not_end_what_heals() -> None:
    (text,) = re.findall(r"```yaml\n(startupProbe.*?)```", (DEPLOY / "OPERATING.md").read_text(), re.DOTALL)
    probes, timers = yaml.safe_load(text), Timers()
    started = probes["startupProbe"]
    assert started["periodSeconds"] * started["failureThreshold"] >= timers.startup
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items() if name.endswith("Probe")}
    assert paths == {"startupProbe": "/health", "livenessProbe": "/live", "readinessProbe": "/ready"}
    assert int(COMPOSE["quire-cpu"]["stop_grace_period"].removesuffix("s")) == probes["terminationGracePeriodSeconds"]
