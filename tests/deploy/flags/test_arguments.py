"""The command line and the YAML file: what they accept, what they refuse, and who wins."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import golden_cli

from quire.deploy.__main__ import build_parser, main
from quire.deploy.commands import serve
from quire.deploy.flags.arguments import Parser, UsageError, gather, known_flags, near
from quire.deploy.flags.llama_flags import LLAMA_FLAGS
from quire.deploy.flags.options import ServeOptions
from quire.deploy.flags.other_engines import OTHER_FLAGS
from quire.deploy.flags.sglang_flags import SGLANG_FLAGS
from quire.deploy.flags.spec import specs
from quire.deploy.flags.tgi_flags import TGI_FLAGS
from quire.deploy.flags.vllm_flags import VLLM_FLAGS


def options(*arguments: str) -> ServeOptions:
    return gather(build_parser().parse_args(["serve", *arguments]))[1]


def refusal(capsys, *arguments: str) -> str:
    """The one line of an exit with code 2."""
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("quire: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_the_set_of_flags_is_frozen() -> None:
    assert golden_cli.lines() == golden_cli.GOLDEN.read_text().splitlines(), "see golden_cli.py"


def test_defaults_are_those_of_vllm_where_they_fit() -> None:
    chosen = options()
    assert chosen == ServeOptions()
    assert (chosen.gpu_memory_utilization, chosen.block_size, chosen.seed) == (0.92, 16, 0)
    assert chosen.enable_prefix_caching
    assert chosen.enable_chunked_prefill
    assert chosen.scheduling_policy == "fcfs"


def test_values_are_read_in_their_units() -> None:
    chosen = options(
        "--max-model-len",
        "12K",
        "--kv-cache-memory-bytes",
        "8GiB",
        "--gpu-memory-utilization",
        "0.5",
        "-tp",
        "2",
        "--no-enable-prefix-caching",
        "--enforce-eager",
        "--served-model-name",
        "a",
        "b",
        "--seed",
        "-3",
    )
    assert chosen.max_model_len == 12288
    assert chosen.kv_cache_memory_bytes == 8 << 30
    assert chosen.gpu_memory_utilization == 0.5
    assert chosen.tensor_parallel_size == 2
    assert not chosen.enable_prefix_caching
    assert chosen.enforce_eager
    assert chosen.served_model_name == ("a", "b")
    assert chosen.seed == -3


def test_a_misspelt_flag_is_refused_with_the_near_one(capsys) -> None:
    assert "did you mean '--max-num-seqs'?" in refusal(capsys, "serve", "--max-num-seq", "3")


@pytest.fixture(scope="module")
def hinted():
    """The flag of `quire serve` that the answer to an unknown one names."""
    parser = Parser(add_help=False)
    serve.add_arguments(parser)
    known = list(known_flags(parser))
    return lambda name: near(name, known).partition("'")[2].partition("'")[0]


def test_a_hint_names_a_flag_that_is_taken(hinted) -> None:
    """No near miss names what would then be refused."""
    for name in OTHER_FLAGS:
        meant = hinted(f"--{name}x").removeprefix("--")
        assert not meant or meant not in OTHER_FLAGS or OTHER_FLAGS[meant].means, (name, meant)
    for spec in specs():
        assert hinted(f"--{spec.name}x") == f"--{spec.name}"


@pytest.mark.parametrize(
    "name",
    ["kv-offload-threads", "shutdown-grace", "enable-mfu-metrics", "sleep-mode-backend", "cp-kv-cache-interleave-size"],
)
def test_a_flag_like_none_of_ours_gets_no_hint(hinted, name: str) -> None:
    assert not hinted(f"--{name}")


@pytest.mark.parametrize("name", ["shutdown-timeout", "enable-sleep-mode", "kv-events-config", "no-flash-attn"])
def test_known_flags_of_others_are_answered_by_themselves(capsys, name: str) -> None:
    flag = OTHER_FLAGS[name]
    if flag.means or flag.speed:
        build_parser().parse_args(["serve", f"--{name}", *([] if flag.bare else ["1"])])
    else:
        assert f"--{name}: {flag.why}" in refusal(capsys, "serve", f"--{name}", *([] if flag.bare else ["1"]))


def test_a_switch_that_quire_lacks_may_be_off(hinted) -> None:
    assert options("--no-enable-lora", "--no-enable-sleep-mode", "--shutdown-timeout", "7") == ServeOptions(
        drain_timeout=7.0
    )
    assert not hinted("--no-enable-lorax")


def test_abbreviations_are_refused(capsys) -> None:
    assert "'--grpc'" in refusal(capsys, "serve", "--grpc", "3")


def test_flags_have_the_spellings_of_vllm() -> None:
    assert options("--port", "9000").http_port == 9000
    assert options("--http-port", "-1").http_port == -1
    assert options("--api-server-count", "2").frontends == 2
    assert options("--allowed-origins", '["*"]').allowed_origins == ("*",)
    assert options("--allowed-hosts", "a", '["b", "c"]').allowed_hosts == ("a", "b", "c")
    assert options("--ssl-certfile", "c", "--ssl-keyfile", "k", "--ssl-ca-certs", "r").ssl_ca_certs == "r"


def test_flags_of_vllm_that_change_nothing_here_are_taken() -> None:
    assert options("--disable-log-requests", "--pipeline-parallel-size", "1", "--swap-space=0") == ServeOptions()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--runner", "draft"], "--runner: a model generates or pools; see --task"),
        (["--pipeline-parallel-size", "2"], "no pipeline parallelism; --tensor-parallel-size"),
        (["--revision", "main"], "MODEL@REVISION"),
        (["--override-generation-config", "temperature=1"], "expected a JSON object like"),
        (["--max-logprobs", "50"], "20 logprobs"),
        (["--allowed-origins", "[1]"], "a JSON list of names"),
        (["--http-port", "65536"], "expected a port in [0, 65535], or -1 for none, got '65536'"),
        (["--http-port", "-2"], "got '-2'"),
    ],
)
def test_flags_of_vllm_that_quire_lacks_are_refused_with_the_way_out(capsys, arguments: list[str], words: str) -> None:
    assert words in refusal(capsys, "serve", *arguments)


def test_no_foreign_flag_is_also_one_of_ours() -> None:
    assert not {name for spec in specs() for name in spec.names} & set(OTHER_FLAGS)
    engines = (VLLM_FLAGS, LLAMA_FLAGS, SGLANG_FLAGS, TGI_FLAGS)
    assert len(OTHER_FLAGS) == sum(map(len, engines)), "two have a flag of one name"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-model-len", "many"], "'many'"),
        (["--dtype", "int3"], "invalid choice: 'int3'"),
        (["--gpu-memory-utilization", "92%"], "expected a number, got '92%'"),
        (["one", "two"], "'two'"),
        (["--seed", "x"], "expected a 64-bit integer, got 'x'"),
    ],
)
def test_bad_values_are_one_line_errors_with_the_value(capsys, arguments: list[str], words: str) -> None:
    assert words in refusal(capsys, "serve", *arguments)


def test_an_unknown_command_is_refused(capsys) -> None:
    assert "srve" in refusal(capsys, "srve")


def test_every_command_has_help(capsys) -> None:
    for command in ("serve", "generate", "bench", "doctor"):
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0
        assert len(capsys.readouterr().out.splitlines()) > 5


def test_the_version_is_told(capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("quire 0.")


def test_the_command_line_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(
        "model: some/model\nmax-model-len: 8K\nmax_num_seqs: 7\nenable-prefix-caching: false\n"
        "served-model-name: [x, y]\nkv-cache-memory-bytes: 1GiB\nseed: 5\nport: 9\n"
        "disable-log-requests: true\ntrust-remote-code: false\npipeline_parallel_size: 1\n"
        "override-generation-config: {temperature: 0.5}\n"
    )
    model, chosen = gather(build_parser().parse_args(["serve", "--config", str(file), "--max-num-seqs", "9"]))
    assert model == "some/model"
    assert chosen.max_model_len == 8192
    assert chosen.max_num_seqs == 9
    assert not chosen.enable_prefix_caching
    assert chosen.served_model_name == ("x", "y")
    assert chosen.kv_cache_memory_bytes == 1 << 30
    assert chosen.seed == 5
    assert chosen.http_port == 9
    assert chosen.override_generation_config == '{"temperature": 0.5}'
    assert gather(build_parser().parse_args(["serve", "other", "--config", str(file)]))[0] == "other"


def test_off_is_a_word_though_yaml_takes_it_for_a_false(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("reasoning-parser: off\ntool_call_parser: Off\nenable-prefix-caching: off\n")
    chosen = options("--config", str(file))
    assert (chosen.reasoning_parser, chosen.tool_call_parser) == ("off", "off")
    assert not chosen.enable_prefix_caching


def test_a_null_of_any_flag_leaves_it_unset(tmp_path: Path) -> None:
    """Charts and templates write every key, and a null where nothing is set."""
    file = tmp_path / "engine.yaml"
    names = ["model", "model-path", "api-key", *OTHER_FLAGS, *(name for spec in specs() for name in spec.names)]
    file.write_text("".join(f"{name}: {'~' if number % 2 else 'null'}\n" for number, name in enumerate(names)))
    assert gather(build_parser().parse_args(["serve", "--config", str(file)])) == ("", ServeOptions())
    file.write_text("max-num-seqs:\nserved-model-name: [a, null]\nport: 9\nhttp-port: null\n")
    assert options("--config", str(file)) == ServeOptions(served_model_name=("a",), http_port=9)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-sequences: 3", "did you mean 'max-num-seqs'"),
        ("config: x", "unknown key 'config'"),
        ("max-num-seqs: [1]", "expected a single value"),
        ("max-num-seqs: true", "expected a single value"),
        ("reasoning-parser: false", "expected a single value"),
        ("max-num-seqs: off", "got 'off'"),
        ("max-num-seqs: {a: 1}", "expected a single value"),
        ("override-generation-config: temperature", "expected a JSON object"),
        ("enforce-eager: yes please", "expected true or false"),
        ("dtype: int3", "expected one of auto"),
        ("model: 3", "expected a directory, GGUF file or hub id"),
        ("unknown: null", "unknown key 'unknown'"),
        ("served-model-name: [[a]]", "expected a single value"),
        ("max-num-seqs: 3\nmax_num_seqs: 4", "there twice"),
        ("port: 3\nhttp-port: 4", "there twice"),
        ("port: 3\nport: 4", "'port' is there twice"),
        ("? [a]\n: 1", "--config"),
        ("runner: draft", "a model generates or pools"),
        ("api-key: secret-secret", "use api-key-file"),
        ("- a\n- b", "got a list"),
        ("a: [", "--config"),
        ("a: " + "[" * 5000, "maximum recursion depth"),
        ("a: !!python/object/apply:os.system [ls]", "--config"),
    ],
)
def test_a_bad_file_is_refused_naming_file_and_key(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"engine\.yaml") as refused:
        options("--config", str(file))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_a_one_line_error(capsys) -> None:
    assert main(["serve", "--config", "/no/such/file.yaml"]) == 2
    assert capsys.readouterr().err.startswith("quire: error: --config /no/such/file.yaml: ")
