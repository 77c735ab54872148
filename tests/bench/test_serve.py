"""`quire bench serve`: figures from records, and a whole run against a server of known behaviour."""

from pathlib import Path

import pytest

from quire.deploy.__main__ import main
from quire.deploy.bench.load.request_record import OK, RequestRecord, summarize

KEYS = {
    "ttft_ms_p50",
    "ttft_ms_p95",
    "ttft_ms_p99",
    "itl_ms_p50",
    "itl_ms_p95",
    "itl_ms_p99",
    "tpot_ms_p50",
    "e2e_ms_p50",
    "e2e_ms_p99",
    "output_tokens_per_s",
    "requests_per_s",
    "errors",
    "machine",
    "commit",
    "seed",
    "config",
}


def test_figures_follow_from_what_one_client_saw() -> None:
    record = RequestRecord(
        sent=10.0, ended=11.0, status=OK, moments=[10.1, 10.3, 10.7], counts=[1, 2, 3], completion_tokens=6
    )
    figures = summarize([record])
    assert figures["ttft_ms_p50"] == pytest.approx(100)
    assert figures["itl_ms_p50"] == pytest.approx(300), "the median of gaps of 200 and 400 ms"
    assert figures["tpot_ms_p50"] == pytest.approx(600 / 5), "five tokens came after the first message"
    assert figures["e2e_ms_p50"] == pytest.approx(1000)
    assert figures["output_tokens_per_s"] == pytest.approx(6)
    assert figures["errors"] == {}


def test_failures_are_counted_by_status_and_give_no_latency() -> None:
    good = RequestRecord(sent=0.0, ended=2.0, status=OK, moments=[1.0], counts=[4], completion_tokens=4)
    refused = [RequestRecord(sent=0.0, ended=0.1, status="RESOURCE_EXHAUSTED") for _ in range(3)]
    figures = summarize([good, *refused, RequestRecord(sent=0.0, ended=4.0)])
    assert figures["errors"] == {"RESOURCE_EXHAUSTED": 3, "INCOMPLETE": 1}
    assert figures["requests_per_s"] == pytest.approx(1 / 4), "one success in the four seconds of the whole run"
    assert figures["ttft_ms_p99"] == pytest.approx(1000)
    assert figures["tpot_ms_p50"] is None, "a single message has no time between tokens"


def test_a_closed_loop_run_prints_the_agreed_keys(bench, scripted_server) -> None:
    target, script = scripted_server
    result = bench(
        "serve",
        "--target",
        target,
        "--concurrency",
        "3",
        "--num-prompts",
        "9",
        "--input-len",
        "4:6",
        "--output-len",
        "5",
        "--shared-prefix",
        "2",
    )
    assert set(result) >= KEYS
    assert result["errors"] == {}
    assert result["output_tokens"] == 45
    assert script.most_open <= 3
    assert all(6 <= len(request.prompt_token_ids.ids) <= 8 and request.ignore_eos for request in script.requests)


def test_an_open_loop_run_counts_refusals_and_goes_on(bench, scripted_server) -> None:
    target, _ = scripted_server
    result = bench(
        "serve", "--target", target, "--rate", "500", "--num-prompts", "20", "--input-len", "32:96", "--output-len", "4"
    )
    refused = result["errors"]["RESOURCE_EXHAUSTED"]
    assert 0 < refused < 20
    assert result["completed"] == 20 - refused


def test_text_prompts_are_the_same_tokens_as_words(bench, scripted_server) -> None:
    target, script = scripted_server
    bench("serve", "--target", target, "--text", "--num-prompts", "2", "--input-len", "3", "--output-len", "2")
    assert [len(request.prompt.split()) for request in script.requests] == [3, 3]


def test_a_run_without_any_success_is_a_failure(scripted_server, capsys) -> None:
    target, _ = scripted_server
    code = main(["bench", "serve", "--target", target, "--num-prompts", "2", "--input-len", "90", "--json"])
    printed = capsys.readouterr()
    assert code == 1
    assert "RESOURCE_EXHAUSTED" in printed.err
    assert printed.out == ""


def test_a_plot_is_written_and_its_folder_checked_first(bench, scripted_server, tmp_path: Path, capsys) -> None:
    target, script = scripted_server
    drawing = tmp_path / "run.png"
    bench(
        "serve",
        "--target",
        target,
        "--num-prompts",
        "3",
        "--input-len",
        "3",
        "--output-len",
        "6",
        "--plot",
        str(drawing),
    )
    assert drawing.read_bytes().startswith(b"\x89PNG")
    sent = len(script.requests)
    assert main(["bench", "serve", "--target", target, "--plot", str(tmp_path / "no" / "run.png")]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert len(script.requests) == sent, "refused before any work"
