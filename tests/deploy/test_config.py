"""Options become the three processes' configurations, or a refusal that names the field."""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quire.deploy.commands.report import addresses, engine_summary, ready_to_paste, target_of
from quire.deploy.commands.serve import QuireEngine
from quire.deploy.config import FLAGS, Composed, compose, show
from quire.deploy.flags.arguments import UsageError
from quire.deploy.flags.options import ServeOptions
from quire.deploy.flags.spec import specs
from quire.deploy.model_path import Model
from quire.deploy.supervisor.rundir import RunDir
from quire.proto.messages.media import MEDIA_FOLDER
from quire.proto.messages.requests import ModelFacts
from quire.proto.process.flags import in_flags
from quire.scheduler.config import SchedulerConfig
from quire.worker.config import WorkerConfig

MODEL = Model(Path("/models/m"), "m")

PAIR = {"ssl_certfile": "c", "ssl_keyfile": "k"}
NEEDS: dict[str, dict[str, Any]] = {
    "max_num_batched_tokens": {"max_num_seqs": 15},
    "ssl_certfile": PAIR,
    "ssl_keyfile": PAIR,
    "ssl_ca_certs": PAIR,
}
"""What an option cannot be without."""

CHANGED: dict[str, Any] = {
    "host": "::1",
    "grpc_port": 1,
    "frontends": 2,
    "served_model_name": ("x",),
    "api_key_file": "k",
    "http_port": 2,
    "admin_key_file": "a",
    "ssl_ca_certs": "ca",
    "allowed_hosts": ("h",),
    "allowed_origins": ("https://o",),
    "max_body_bytes": 10,
    "max_preparing_bytes": 99 << 20,
    "tokenizer_memory_bytes": 999,
    "task": "embed",
    "tool_call_parser": "hermes",
    "reasoning_parser": "deepseek_r1",
    "enable_auto_tool_choice": False,
    "unknown_fields": "refuse",
    "enable_timings": True,
    "log_stats_interval": 3.0,
    "vllm_metric_names": True,
    "metrics_without_key": True,
    "otlp_traces_endpoint": "http://t:4318",
    "ssl_certfile": "c",
    "ssl_keyfile": "k",
    "max_num_queued_reqs": 11,
    "max_num_queued_tokens": 12,
    "tokenizer": "/t",
    "chat_template": "c",
    "generation_config": "vllm",
    "override_generation_config": '{"top_k": 3}',
    "dtype": "bfloat16",
    "quantization": "int8",
    "model_impl": "transformers",
    "load_format": "dummy",
    "max_model_len": 13,
    "seed": 14,
    "limit_mm_per_prompt": '{"image": 3}',
    "mm_processor_kwargs": '{"max_pixels": 999}',
    "media_io_kwargs": '{"video": {"fps": 1}}',
    "media_processes": 3,
    "max_image_pixels": 7,
    "media_store_bytes": 8,
    "allowed_local_media_path": "/pictures",
    "allowed_media_domains": ("cdn.example",),
    "max_num_seqs": 15,
    "max_num_batched_tokens": 16,
    "scheduling_policy": "priority",
    "max_connections": 24,
    "max_concurrent_streams": 25,
    "http_keep_alive": 120.0,
    "max_num_partial_prefills": 6,
    "max_num_encoder_patches": 26,
    "language_model_only": True,
    "mm_encoder_cache_bytes": 27,
    "mm_encoder_tp_mode": "weights",
    "enable_chunked_prefill": False,
    "enable_prefix_caching": False,
    "block_size": 32,
    "gpu_memory_utilization": 0.5,
    "kv_cache_dtype": "fp8",
    "calculate_kv_scales": True,
    "kv_cache_memory_bytes": 17,
    "device": "cpu",
    "tensor_parallel_size": 3,
    "enable_expert_parallel": True,
    "enforce_eager": True,
    "prefill_body": "plain",
    "num_threads": 18,
    "mlock": True,
    "startup_timeout": 19.0,
    "drain_timeout": 20.0,
    "max_restarts": 21,
    "restart_window": 22.0,
    "step_timeout": 23.0,
    "log_level": "debug",
}
"""Another value than the default for every option that a process is told."""
TAKEN_TOGETHER = {"enable_auto_tool_choice": "--tool-call-parser"}
"""An option that decides another's field -> the flag of that."""


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[RunDir]:
    held = RunDir(str(tmp_path / "run"))
    yield held
    held.close()


def composed(run_dir: RunDir, **values: Any) -> Composed:
    return compose(replace(ServeOptions(), **values), MODEL, run_dir)


def test_addresses_and_shared_values_agree(run_dir: RunDir) -> None:
    whole = composed(run_dir, tensor_parallel_size=2, max_num_seqs=8, max_num_batched_tokens=64, dtype="half")
    assert whole.scheduler.frontends_address == whole.frontend.scheduler_address
    assert whole.scheduler.workers_address == whole.worker.scheduler_address
    assert whole.scheduler.world_size == whole.worker.tensor_parallel_size == 2
    assert whole.scheduler.max_num_seqs == whole.worker.max_num_seqs == 8
    assert whole.worker.dtype == "float16"
    assert whole.frontend.served_model_names == ("m",)
    whole = composed(run_dir, startup_timeout=70.0)
    assert whole.frontend.startup_seconds == whole.timers.startup == 70.0


def test_two_words_for_one_type_mean_it(run_dir: RunDir) -> None:
    for word, meant in (("half", "float16"), ("float", "float32"), ("bfloat16", "bfloat16")):
        assert composed(run_dir, dtype=word).worker.dtype == meant
    for word, meant in (("fp8_e4m3", "fp8"), ("fp8", "fp8"), ("auto", "auto"), ("int8_per_token_head", "int8")):
        assert composed(run_dir, kv_cache_dtype=word).worker.kv_cache_dtype == meant


def test_every_option_reaches_a_process(run_dir: RunDir) -> None:
    untouched = {"run_dir", "hf_overrides"}  # the launcher makes it, and a directory of the other
    assert set(CHANGED) | untouched == {spec.field for spec in specs()}
    plain = show(composed(run_dir))
    for name, value in CHANGED.items():
        extra: dict[str, Any] = {name: value} | NEEDS.get(name, {})
        assert show(composed(run_dir, **extra)) != plain, name


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"frontends": 0}, "^--frontends: must be at least 1"),
        ({"grpc_port": 70_000}, "^--grpc-port: must"),
        ({"http_port": -2}, "^--http-port: must"),
        ({"media_processes": 0}, "^--media-processes: must be at least 1"),
        ({"media_io_kwargs": '{"image": {"mode": "L"}}'}, "^--media-io-kwargs: takes .*fps.*, got ..image.: "),
        ({"media_io_kwargs": '{"audio": {}}'}, "^--media-io-kwargs: takes .*fps.*, got ..audio.: "),
        ({"media_io_kwargs": '{"video": {"backend": "x"}}'}, "^--media-io-kwargs: takes .*num_frames.*, got "),
        ({"media_io_kwargs": '{"video": {"fps": 1, "num_frames": 4}}'}, "^--media-io-kwargs: fps excludes num_frames"),
        (
            {"mm_processor_kwargs": '{"do_sample_frames": false}'},
            "^--mm-processor-kwargs: do_sample_frames is False, but frames of a video file are always sampled; leave",
        ),
        ({"mm_processor_kwargs": '{"fps": 1, "num_frames": 4}'}, "^--mm-processor-kwargs: fps excludes num_frames"),
        (
            {"mm_processor_kwargs": '{"fps": 1}', "media_io_kwargs": '{"video": {"fps": 2}}'},
            "^--media-io-kwargs: fps is 2, but 1 in --mm-processor-kwargs; set only one of them",
        ),
        ({"limit_mm_per_prompt": '{"smell": 1}'}, "^--limit-mm-per-prompt: takes counts, .*got .smell.: 1"),
        ({"max_preparing_bytes": 15 << 20}, "^--max-preparing-bytes: must be at least twice"),
        ({"tool_call_parser": "nonsense"}, "^--tool-call-parser: 'nonsense' is not one of auto, .*qwen3_coder"),
        ({"reasoning_parser": "nonsense"}, "^--reasoning-parser: 'nonsense' is not one of auto, .*qwen3"),
        ({"tool_call_parser": "hermess"}, "^--tool-call-parser: 'hermess' is no known format; did you mean 'hermes'"),
        ({"allowed_origins": ("app.example",)}, "^--allowed-origins: 'app.example' is none; write https://"),
        ({"max_num_batched_tokens": 1 << 40}, "^--max-num-batched-tokens: must be at most 1048576"),
        ({"tokenizer_memory_bytes": 0}, "^--tokenizer-memory-bytes: must"),
        ({"max_num_seqs": 0}, "^--max-num-seqs: must"),
        ({"max_num_partial_prefills": 0}, "^--max-num-partial-prefills: must be at least 1, got 0"),
        ({"max_num_encoder_patches": 0}, "^--max-num-encoder-patches: must be at least 1, got 0"),
        (
            {"max_num_seqs": 64, "max_num_batched_tokens": 32},
            "^--max-num-batched-tokens: 32 is less than --max-num-seqs 64",
        ),
        ({"block_size": 24}, "^--block-size: must be a power of two"),
        ({"gpu_memory_utilization": 1.5}, "^--gpu-memory-utilization: must"),
        ({"startup_timeout": 0.0}, "^--startup-timeout: must"),
        ({"drain_timeout": -1.0}, "^--drain-timeout: must be finite seconds, at least 0"),
        ({"tensor_parallel_size": 0}, "^--tensor-parallel-size: must be at least 1"),
        ({"step_timeout": 0.0}, "^--step-timeout: must"),
        ({"max_restarts": -1}, "^--max-restarts: must"),
        ({"restart_window": float("nan")}, "^--restart-window: must"),
        ({"override_generation_config": '{"temperature": 9}'}, "^--override-generation-config: temperature: must be"),
        ({"override_generation_config": '{"top_k": "5"}'}, "^--override-generation-config: Expected `int.*top_k"),
        ({"override_generation_config": '{"temprature": 1}'}, "^--override-generation-config: .*mean 'temperature'"),
        (
            {"override_generation_config": '{"typical_p": 1}'},
            "^--override-generation-config: 'typical_p' is no default",
        ),
        (
            {"override_generation_config": '{"max_new_tokens": 0}'},
            "^--override-generation-config: max_new_tokens: must",
        ),
    ],
)
def test_values_out_of_range_are_refused_by_name(run_dir: RunDir, values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        composed(run_dir, **values)


@pytest.mark.parametrize("option", CHANGED)
def test_a_field_that_an_option_sets_is_called_by_its_flag(run_dir: RunDir, option: str) -> None:
    """What processes are told to call their fields is read off what each flag changes."""
    needs = NEEDS.get(option, {})
    plain = composed(run_dir, **{**needs, **({option: "another"} if option in needs else {})})
    other = composed(run_dir, **{**needs, option: CHANGED[option]})
    for part in ("scheduler", "worker", "frontend"):
        before, after = (msgspec.structs.asdict(getattr(whole, part)) for whole in (plain, other))
        for field in (field for field in before if before[field] != after[field]):
            assert FLAGS[field] == TAKEN_TOGETHER.get(option, "--" + option.replace("_", "-")), (part, field)
    assert plain.worker.flags == plain.frontend.flags == FLAGS


def test_what_published_clients_say_of_frames_is_taken(run_dir: RunDir) -> None:
    sampled = composed(run_dir, mm_processor_kwargs='{"fps": 2, "do_sample_frames": true}')
    assert sampled.frontend.mm_processor_kwargs == {"fps": 2}
    for nothing in ('{"video": {"num_frames": -1}}', '{"video": {"fps": -1, "num_frames": -1}}', '{"image": {}}'):
        assert composed(run_dir, media_io_kwargs=nothing).frontend.media_io_kwargs == {}
    unlimited = composed(run_dir, media_io_kwargs='{"image": {}, "video": {"num_frames": -1, "fps": 2}}')
    assert unlimited.frontend.media_io_kwargs == {"fps": 2}


def refusal(run_dir: RunDir, option: str, value: object) -> str:
    """Empty for a value that is taken, or of a type that no parser of the flag makes."""
    try:
        composed(run_dir, **{option: value})
    except UsageError as error:
        return str(error)
    except (TypeError, AttributeError):
        pass
    return ""


def test_whatever_value_a_configuration_refuses_it_is_refused_by_its_flag(run_dir: RunDir) -> None:
    refused = set()
    for option in CHANGED:
        for value in (-5, 0, 3, 1 << 40, float("nan"), float("inf"), "alone"):
            if message := refusal(run_dir, option, value):
                refused.add(option)
                assert message.startswith("--")
                assert not [field for field in FLAGS if "_" in field and field in message], message
    numbers = {spec.field for spec in specs() if spec.kind == "value" and isinstance(spec.default, (int, float))}
    assert refused >= (numbers - {"seed"}) | {"ssl_certfile", "ssl_keyfile", "ssl_ca_certs"}


def test_words_of_a_message_that_only_look_like_fields_stay() -> None:
    text = "seed: the tokenizer of /a/max_model_len.json, dtype: 7; lower max_model_len."
    assert in_flags(text, FLAGS) == "--seed: the tokenizer of /a/max_model_len.json, dtype: 7; lower --max-model-len."
    assert in_flags(in_flags(text, FLAGS), FLAGS) == in_flags(text, FLAGS)
    assert in_flags(text, {}) == text


def test_the_engine_writes_configurations_its_processes_can_read(run_dir: RunDir) -> None:
    whole = composed(run_dir, tensor_parallel_size=2)
    engine = QuireEngine(whole, run_dir)
    scheduler = engine.scheduler_command()
    assert scheduler[1:4] == ["-P", "-m", "quire.scheduler"]
    assert msgspec.json.decode(Path(scheduler[4]).read_bytes(), type=SchedulerConfig) == whole.scheduler
    worker = engine.worker_command(1, 7)
    assert worker[3] == "quire.worker"
    assert worker[5:] == ["--rank", "1", "--epoch", "7"]
    assert msgspec.json.decode(Path(worker[4]).read_bytes(), type=WorkerConfig) == whole.worker


def test_a_rank_that_reads_its_configuration_is_not_disturbed_by_the_start_of_the_next(run_dir: RunDir) -> None:
    engine = QuireEngine(composed(run_dir, tensor_parallel_size=2), run_dir)
    with open(engine.worker_command(0, 1)[4], "rb") as reading:
        engine.worker_command(1, 1)
        assert os.fstat(reading.fileno()).st_nlink == 1
        msgspec.json.decode(reading.read(), type=WorkerConfig)


def test_a_new_group_removes_where_dead_ones_met_and_not_where_it_meets_itself(run_dir: RunDir) -> None:
    engine = QuireEngine(composed(run_dir, tensor_parallel_size=2), run_dir)
    for epoch, rank in ((1, 0), (1, 1), (2, 0), (2, 1)):
        engine.worker_command(rank, epoch)
        (run_dir.path / f"rendezvous-{epoch}").touch()
        assert [path.name for path in run_dir.path.glob("rendezvous*")] == [f"rendezvous-{epoch}"]


def test_a_new_frontend_removes_the_pixels_of_its_earlier_lives(run_dir: RunDir) -> None:
    engine = QuireEngine(composed(run_dir, frontends=2), run_dir)
    for name in ("0-old", "0-older", "1-living", "10-living"):
        (run_dir.path / MEDIA_FOLDER / name).mkdir(parents=True)
        (run_dir.path / MEDIA_FOLDER / name / "pixels").write_bytes(b"\0")
    engine.frontend_command(0)
    assert sorted(path.name for path in (run_dir.path / MEDIA_FOLDER).iterdir()) == ["1-living", "10-living"]


def test_a_restart_needs_no_room_on_the_disk(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = QuireEngine(composed(run_dir), run_dir)
    first = [engine.scheduler_command(), engine.worker_command(0, 1), engine.frontend_command(0)]

    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    again = [engine.scheduler_command(), engine.worker_command(0, 2), engine.frontend_command(0)]
    assert [words[:5] for words in again] == [words[:5] for words in first]


def test_a_started_frontend_is_not_ready_because_its_predecessor_was(run_dir: RunDir) -> None:
    engine = QuireEngine(composed(run_dir), run_dir)
    engine.frontend_command(0)
    engine.ready_file(0).write_text('{"ready": false}')
    assert not engine.frontend_ready(0)
    engine.ready_file(0).write_text('{"ready": true}')
    assert engine.frontend_ready(0)
    engine.frontend_command(0)
    assert not engine.frontend_ready(0)


def test_the_summary_tells_memory_blocks_and_concurrency() -> None:
    facts = ModelFacts(
        max_model_len=4096,
        vocab_size=10,
        eos_token_ids=(),
        num_blocks=640,
        block_sizes=(16,),
        kv_bytes=1 << 30,
        weight_bytes=20 << 20,
        device="cpu",
        dtype="float32",
        architecture="LlamaForCausalLM",
        revision="r",
    )
    lines = "\n".join(engine_summary(facts))
    assert "weights 20 MiB, KV cache 1 GiB" in lines
    assert "640 blocks of 16 tokens" in lines
    assert "maximum concurrency for 4096 tokens: 2.50x" in lines


def test_examples_name_an_address_a_client_can_reach(run_dir: RunDir) -> None:
    assert target_of("0.0.0.0", 5) == "localhost:5"
    assert target_of("::1", 5) == "[::1]:5"
    text = ready_to_paste(composed(run_dir, api_key_file="/k eys").frontend)
    assert "--target 127.0.0.1:50051 --api-key-file '/k eys'" in text
    assert "curl http://127.0.0.1:8000/v1/completions" in text
    assert "$(head -n 1 '/k eys')" in text


def test_the_start_up_line_names_both_addresses(run_dir: RunDir) -> None:
    both = composed(run_dir, host="0.0.0.0", http_port=81, ssl_certfile="c", ssl_keyfile="k")
    assert addresses(both.frontend) == "ready: gRPC on localhost:50051, HTTP on https://localhost:81"
    assert "--tls-ca-file" in ready_to_paste(both.frontend)
    assert "/v1/embeddings" in ready_to_paste(both.frontend, "embed")
    alone = composed(run_dir, http_port=-1).frontend
    assert addresses(alone) == "ready: gRPC on 127.0.0.1:50051"
    assert "curl" not in ready_to_paste(alone)


def test_the_frontends_share_the_private_directory(run_dir: RunDir) -> None:
    assert composed(run_dir).frontend.run_dir == str(run_dir.path)


def test_without_auto_tool_choice_no_tool_call_is_looked_for(run_dir: RunDir) -> None:
    assert composed(run_dir, tool_call_parser="hermes").frontend.tool_call_parser == "hermes"
    assert composed(run_dir, enable_auto_tool_choice=False).frontend.tool_call_parser == ""
