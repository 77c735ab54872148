"""`quire doctor` looks at the real machine and the real worker, with weights or by config.json alone."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quire.deploy.__main__ import main
from quire.proto.process.parent_death import PARENT_VARIABLE

PUBLISHED = Path(__file__).parents[2] / "published"


def test_the_embedded_model_would_run_here() -> None:
    """As a user calls it, with a worker process of its own."""
    command = [sys.executable, "-P", "-m", "quire.deploy", "doctor", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in (
        "quire ",
        "torch ",
        "CPU features",
        "paged_attention",
        "LlamaForCausalLM",
        "by the modules of transformers",
        "refused: nothing",
    ):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["WeirdForCausalLM"]}, "'WeirdForCausalLM'"),
        ({"architectures": ["LlamaForCausalLM"]}, "hidden_size"),
    ],
)
def test_a_model_nobody_can_serve_is_refused_with_the_reason(
    capsys, tmp_path: Path, config: dict[str, object], words: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert main(["doctor", str(tmp_path), "--load-format", "dummy", "--device", "cpu"]) == 1
    out = capsys.readouterr().out
    assert "refused:" in out
    assert words in out.partition("refused:")[2]


def test_a_tokenizer_that_no_frontend_reads_is_refused(capsys, tiny_checkpoint, tmp_path: Path) -> None:
    shutil.copytree(tiny_checkpoint(), tmp_path, dirs_exist_ok=True)
    whole = (tmp_path / "tokenizer.json").read_text().rstrip()
    (tmp_path / "tokenizer.json").write_text(f'{whole[:-1]}, "deep": {"[" * 9999}{"]" * 9999}}}')
    assert main(["doctor", str(tmp_path), "--device", "cpu"]) == 1
    refused = capsys.readouterr().out.partition("refused:")[2]
    assert f"--tokenizer: {tmp_path / 'tokenizer.json'}: not a tokenizer this build reads" in refused


def test_a_missing_model_is_refused_and_the_machine_is_shown_all_the_same(capsys) -> None:
    assert main(["doctor", "/no/such/model", "--device", "cpu"]) == 1
    out = capsys.readouterr().out
    assert "rms_norm" in out
    assert "/no/such/model" in out.partition("refused:")[2]


@pytest.fixture
def eight_b(tmp_path: Path) -> Path:
    shutil.copy(PUBLISHED / "Llama-3.1-8B/config.json", tmp_path)
    return tmp_path


def test_config_json_alone_says_whether_it_will_run_on_a_device_that_is_not_here(capsys, eight_b: Path) -> None:
    memory = ["--device-memory", "48GiB", "--gpu-memory-utilization", "0.7", "--max-model-len", "12K", "-tp", "1"]
    assert main(["doctor", str(eight_b), *memory]) == 0
    out = capsys.readouterr().out
    assert "by headers" not in out
    assert out.count("\n") < 40, "a screen"
    assert "kernels:" not in out, "this machine's say nothing of a device that is elsewhere"
    for words in (
        "model (by config):",
        "parameters      8.03 B (8030261248)\n",
        "weights 15 GiB in bfloat16, KV cache 128 KiB a token in bfloat16: 152704 tokens",
        "KV memory       at most 18.6 GiB of 48 GiB",
        "12.4 sequences of 12288 tokens, at most",
        "not here yet    *.safetensors, tokenizer.json",
        "refused: nothing",
    ):
        assert words in out, words


def test_what_would_make_it_fit_is_named_in_flags(capsys, eight_b: Path) -> None:
    assert main(["doctor", str(eight_b), "--device-memory", "24GiB", "--max-model-len", "64K"]) == 1
    (refused,) = capsys.readouterr().out.partition("refused:\n")[2].splitlines()
    assert refused.endswith(
        "it fits with --max-model-len=57344 or --gpu-memory-utilization=0.96 or --kv-cache-dtype=fp8 "
        "or --tensor-parallel-size=2 or --quantization=fp8"
    )
    assert main(["doctor", str(eight_b), "--device", "cpu", "--device-memory", "24GiB"]) == 1
    assert "it fits with --dtype=bfloat16 or --quantization=int8\n" in capsys.readouterr().out
    assert main(["doctor", str(eight_b), "--device-memory", "24GiB"]) == 0
    assert "131072, lowered to what the memory holds: at most 58336" in capsys.readouterr().out


def test_of_a_published_model_that_is_not_served_doctor_says_what_is_not(capsys) -> None:
    assert main(["doctor", str(PUBLISHED / "DeepSeek-V3"), "--device-memory", "80GiB", "--model-impl", "quire"]) == 1
    refused = capsys.readouterr().out.partition("refused:\n")[2].splitlines()
    assert [line.split(": ")[1] for line in refused] == ["architectures", "auto_map"]


def test_doctor_counts_the_quantized_experts_of_a_published_model(capsys) -> None:
    assert main(["doctor", str(PUBLISHED / "gpt-oss-20b"), "--device-memory", "80GiB"]) == 0
    said = capsys.readouterr().out
    assert "mxfp4: 3.36 GiB dense, 10 GiB 4-bit float groups of 32, activations as they are" in said
    assert "12 layers with a window of 128 in 1 group" in said


def test_doctor_deals_the_experts_of_a_published_model(capsys) -> None:
    scout = ["doctor", str(PUBLISHED / "Llama-4-Scout-17B-16E"), "--device-memory", "80GiB", "-tp", "4", "-ep"]
    assert main(scout) == 1
    assert "are not read; set --language-model-only to serve its text" in capsys.readouterr().out
    assert main([*scout, "--language-model-only"]) == 0
    assert "16, 1 for each token, in 48 of 48 layers, dealt to the ranks" in capsys.readouterr().out


def test_doctor_counts_the_experts_of_a_published_model(capsys) -> None:
    assert main(["doctor", str(PUBLISHED / "Qwen3-30B-A3B"), "--device-memory", "80GiB"]) == 0
    said = capsys.readouterr().out
    assert "30.5 B (30532122624)" in said
    assert "128, 8 for each token, in 48 of 48 layers; a token meets 3.35 B parameters" in said


def test_doctor_counts_a_model_with_its_tower_and_its_text_alone(capsys) -> None:
    gemma = ["doctor", str(PUBLISHED / "gemma-3-27b"), "--device-memory", "80GiB"]
    assert main(gemma) == 0
    assert "27.4 B (27432406640)" in capsys.readouterr().out
    assert main([*gemma, "--language-model-only"]) == 0
    assert "27.0 B (27009346304)" in capsys.readouterr().out


def test_doctor_says_which_factors_of_longrope_the_longest_context_takes(capsys) -> None:
    phi = ["doctor", str(PUBLISHED / "Phi-3-mini-128k"), "--device", "cpu", "--device-memory", "64GiB"]
    for flags, said in (([], "beyond 4096 tokens; "), (["--max-model-len", "4096"], "within 4096 tokens")):
        assert main([*phi, *flags]) == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "longrope" in line)
        assert f"its factors for contexts {said}" in line


def test_doctor_and_the_plan_of_a_start_name_the_forms_of_a_quantized_model_with_their_bytes(capsys) -> None:
    fp8 = str(PUBLISHED / "Qwen3-8B-FP8")
    on_cpu = ["--device", "cpu", "--dtype", "bfloat16"]
    # without a name the plan is one for GPUs; processors keep four bytes more of an output
    for device, held in ((on_cpu, "6.48"), ([], "6.47")):
        assert main(["doctor", fp8, "--device-memory", "64GiB", *device]) == 0
        out = capsys.readouterr().out
        (line,) = (line.split(maxsplit=1)[1] for line in out.splitlines() if "quantization" in line)
        assert line == (
            f"fp8: {held} GiB f8 blocks of 128 x 128, activations quantized token by token and 128 inputs by 128, "
            "2.32 GiB dense"
        )
        assert "memory          weights 8.79 GiB in bfloat16 and f8 blocks, KV cache" in out
    bf16 = str(PUBLISHED / "Qwen3-8B")
    assert main(["doctor", bf16, "--device", "cpu", "--device-memory", "64GiB", "--dtype", "bfloat16"]) == 0
    assert "quantization" not in capsys.readouterr().out
    assert (
        main(["doctor", bf16, "--device", "cpu", "--device-memory", "12GiB", "-q", "fp8", "--dtype", "bfloat16"]) == 0
    )
    assert "fp8: 6.48 GiB f8 rows, activations quantized token by token, 2.32 GiB dense" in capsys.readouterr().out


def test_doctor_names_the_groups_of_a_model_and_the_activations_that_its_dtype_takes(capsys) -> None:
    awq = ["doctor", str(PUBLISHED / "Qwen2.5-7B-AWQ"), "--device", "cpu", "--device-memory", "64GiB"]
    for dtype, activations in (("auto", "quantized to 8 bits 32 by 32"), ("bfloat16", "as they are")):
        assert main([*awq, "--dtype", dtype]) == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "quantization" in line)
        assert "awq: 3.18 GiB 4-bit groups of 128 with zero points, activations " + activations in line
    assert main([*awq[:2], "--device-memory", "80GiB"]) == 0
    assert "4-bit groups of 128 with zero points, activations as they are" in capsys.readouterr().out, "on a GPU"
    int4 = ["doctor", str(PUBLISHED / "Qwen3-8B"), "--device", "cpu", "--device-memory", "8GiB", "-q", "int4"]
    assert main([*int4, "--kv-cache-memory-bytes", "256MiB", "--dtype", "bfloat16"]) == 0
    assert "int4: 3.39 GiB 4-bit groups of 128 with zero points, activations as they are, 2.32 GiB dense\n" in (
        capsys.readouterr().out
    )


def test_doctor_names_a_form_once_whatever_the_order_of_inputs_and_layers_without_groups(capsys, tmp_path) -> None:
    made = Path(__file__).parents[2] / "worker" / "quant" / "checkpoints" / "gptq_order"
    main(["doctor", str(made), "--device", "cpu", "--dtype", "float32"])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  quantization"))
    assert line.split(maxsplit=1)[1] == (
        "gptq: 46 KiB 4-bit groups of 32 with zero points, inputs in an order of their own, activations as they are, "
        "25.2 KiB dense"
    )
    config = json.loads((PUBLISHED / "Qwen3-8B" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 12_296}))
    main(["doctor", str(tmp_path), "--device", "cpu", "--device-memory", "64GiB", "-q", "int4"])
    assert "dense, of that 36 layers whose inputs divide into no groups\n" in capsys.readouterr().out


def test_every_reason_is_given_at_once(capsys, eight_b: Path) -> None:
    asked = ["--device-memory", "12GiB", "-tp", "3", "--max-model-len", "200000"]
    assert main(["doctor", str(eight_b), *asked]) == 1
    refused = capsys.readouterr().out.partition("refused:\n")[2].splitlines()
    assert [line.strip().partition(":")[0] for line in refused] == [
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "--max-model-len",
    ]
    wrong = [
        "--max-num-seqs",
        "0",
        "--block-size",
        "24",
        "--step-timeout",
        "0",
        "--restart-window",
        "0",
        "--max-num-queued-reqs",
        "0",
        "--max-num-queued-tokens",
        "0",
        "--max-concurrent-streams",
        "0",
        "--min-p",
        "7",
    ]
    assert main(["doctor", str(eight_b), *asked, *wrong, "--drain-timeout", "-1"]) == 1
    refused = capsys.readouterr().out.partition("refused:\n")[2]
    for flag in (*wrong[:-2:2], "--override-generation-config", "--drain-timeout", "num_attention_heads"):
        assert refused.count(f"{flag}: ") == 1, refused


@pytest.mark.parametrize(("text", "words"), [("48", "48 is 48 bytes, and no device's"), ("48Gb/s", "a size like")])
def test_a_memory_without_a_unit_is_a_slip(capsys, eight_b: Path, text: str, words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", str(eight_b), "--device-memory", text])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_it_takes_a_line_of_serve_as_it_is_and_judges_all_of_it(capsys, eight_b: Path) -> None:
    line = [str(eight_b), "--device-memory", "80GiB", "--host", "0.0.0.0", "--max-num-seqs", "512", "--swap-space", "4"]
    assert main(["doctor", *line]) == 0
    assert "--swap-space  changes no answer: " in capsys.readouterr().out
    wrong = ["--frontends", "0", "--drain-timeout", "-1", "--max-num-seqs", "4096", "--tool-call-parser", "hermess"]
    assert main(["doctor", *line, *wrong, "--block-size", "20", "--max-model-len", "1M"]) == 1
    refused = capsys.readouterr().out.partition("refused:\n")[2].splitlines()
    assert [line.strip().partition(":")[0] for line in refused] == [
        "--frontends",
        "--drain-timeout",
        "--max-num-batched-tokens",
        "--tool-call-parser",
        "--block-size",
        "--max-model-len",
    ]


def test_the_licence_of_the_model_card_is_shown(capsys, eight_b: Path) -> None:
    card = "---\nlicense: other\nlicense_name: llama3.1\x9b2J\ntags: [x]\n---\n# A model\nlicense: mine\n"
    (eight_b / "README.md").write_text(card)
    main(["doctor", str(eight_b), "--device-memory", "48GiB"])
    assert "other, llama3.1\\u009b2J, says the model card\n" in capsys.readouterr().out


def test_files_are_compared_with_the_digests_beside_them(capsys, eight_b: Path) -> None:
    ask = ["doctor", str(eight_b), "--device-memory", "48GiB", "--digest"]
    assert main(ask) == 1
    assert "SHA256SUMS cannot be read: No such file" in capsys.readouterr().out
    digest = hashlib.sha256((eight_b / "config.json").read_bytes()).hexdigest()
    (eight_b / "SHA256SUMS").write_text(f"{digest}  config.json\n\n{digest.upper()} *config.json\n")
    assert main(ask) == 0
    capsys.readouterr()
    (eight_b / "other").write_text("x")
    lines = [f"{digest}  other", f"{digest}  absent", f"{digest}  ../outside", "nonsense"]
    lines += [f"{digest}  {'a' * 5000}", f"{digest}  a\0b"]
    (eight_b / "SHA256SUMS").write_text("\n".join(lines))
    assert main(ask) == 1
    refused = capsys.readouterr().out.partition("refused:\n")[2].splitlines()
    expected = ("'other' is not the file", "'absent' of", "outside", "line 4", "no name", "no name")
    for line, words in zip(refused, expected, strict=True):
        assert words in line


def test_licence_and_digests_of_a_gguf_file_are_those_beside_it(capsys, tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "worker" / "weights" / "ggufs"
    for file in folder.glob("qwen3-split-*.gguf"):
        (tmp_path / file.name).symlink_to(file)  # as a cache of downloads has it
    names = sorted(path.name for path in tmp_path.iterdir())
    (tmp_path / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    digests = [f"{hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}  {name}" for name in names]
    (tmp_path / "beside").mkdir()
    ask = ["doctor", str(tmp_path / "beside" / ".." / names[0]), "--device", "cpu", "--digest"]
    (tmp_path / "SHA256SUMS").write_text("\n".join([*digests, f"{'0' * 64}  another-model.gguf"]))
    assert main(ask) == 0
    assert "apache-2.0, says the model card\n" in capsys.readouterr().out
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  {names[1]}")
    assert main(ask) == 1
    refused = capsys.readouterr().out.partition("refused:\n")[2].splitlines()
    assert f"has no line for {names[0]!r};" in refused[0]
    assert f"{names[1]!r} is not the file" in refused[1]


def test_what_looks_at_the_model_ends_with_doctor():
    """Whoever kills doctor must not leave a process behind that goes on reading a model."""
    command = [sys.executable, "-P", "-m", "quire.worker.inspect", "{}"]
    another = os.environ | {PARENT_VARIABLE: str(2**30)}
    done = subprocess.run(command, env=another, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "is gone" in done.stderr
