"""What can never be served is refused at the start: exit code 2, one line that names the cause, no process left."""

import shutil
from pathlib import Path

import pytest

SHARD = "model.safetensors"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("--no-enable-chunked-prefill", "--max-num-batched-tokens=64", "--max-num-seqs=8"),
            "max_num_batched_tokens|--max-num-batched-tokens",
        ),
        (("--kv-cache-memory-bytes=99999GiB",), "refused: --kv-cache-memory-bytes: "),
        (("--kv-cache-memory-bytes=1",), "refused: --max-model-len: "),
        (("--max-model-len=257",), "refused: --max-model-len: 257"),
        (("--tensor-parallel-size=3",), "num_attention_heads|heads"),
        (("--device=cuda",), "refused: --device: cuda"),
    ],
)
def test_flags_that_cannot_work(quire, tiny_checkpoint, flags, said):
    made = quire("serve", str(tiny_checkpoint()), "--grpc-port=0", "--http-port=0", *flags)
    assert made.returncode == 2, made.stdout + made.stderr
    assert any(word in made.stdout + made.stderr for word in said.split("|"))
    assert "Traceback" not in made.stdout + made.stderr


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
