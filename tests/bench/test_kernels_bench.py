"""`quire bench kernels` as a user runs it: keys and refusals; never times."""

from quire.deploy.__main__ import main


def test_one_operation_prints_the_agreed_keys_for_each_shape(bench) -> None:
    result = bench("kernels", "--op", "gated_activation", "--seconds", "0.01", "--num-threads", "1", "--seed", "4")
    rows = result["gated_activation"]
    assert set(rows) == {"1 x 2048", "16 x 2048", "1024 x 2048"}
    for row in rows.values():
        assert set(row) == {"ms", "gb_s", "tflop_s", "share_of_limit", "share_of_read", "vs_torch", "error", "cold"}
        assert row["ms"] > 0
    assert result["copy_bytes_per_second"] > 0
    assert result["seed"] == 4
    assert result["config"]["chip"] == "cpu"


def test_an_unknown_operation_is_reported(capsys) -> None:
    assert main(["bench", "kernels", "--op", "nonsense"]) == 1
    assert "unknown nonsense" in capsys.readouterr().err


def test_seconds_must_be_positive(capsys) -> None:
    assert main(["bench", "kernels", "--seconds", "0"]) == 1
    assert "--seconds: must be positive" in capsys.readouterr().err
