"""`--slo` and `--sweep` of `quire bench serve`: which requests keep a level, and the search for the highest load."""

import asyncio
import math
from argparse import Namespace

import pytest

from quire.deploy.__main__ import main
from quire.deploy.bench.load.request_record import OK, RequestRecord
from quire.deploy.bench.load.service_level import ServiceLevel, read_service_level
from quire.deploy.bench.load.sweep import TOLERANCE, Sweep
from quire.deploy.bench.report.errors import BenchError
from quire.deploy.bench.serve import swept_figures

RECORD = RequestRecord(sent=1.0, ended=1.9, status=OK, moments=[1.2, 1.3, 1.8], counts=[1, 4, 4])
"""First token after 200 ms, gaps of 100 and 500 ms, 75 ms a token behind the first, 900 ms in all."""


@pytest.mark.parametrize(
    ("level", "holds"),
    [
        ("ttft=201ms", True),
        ("ttft=199ms", False),
        ("itl=0.6s", True),
        ("itl=499ms", False),
        ("tpot=76ms", True),
        ("tpot=74ms", False),
        ("e2e=0.91s", True),
        ("e2e=899ms", False),
        ("ttft=1s, itl=1s, tpot=1s, e2e=899ms", False),
    ],
)
def test_a_request_keeps_a_level_when_it_keeps_all_of_it(level, holds) -> None:
    assert read_service_level(level).holds(RECORD) is holds


def test_what_failed_keeps_no_level() -> None:
    failed = RequestRecord(sent=0.0, ended=0.1, status="RESOURCE_EXHAUSTED")
    assert ServiceLevel(ttft=1e9).share([RECORD, RECORD, failed, RECORD]) == 0.75


@pytest.mark.parametrize(
    "text", ["ttft", "ttft=200", "ttft=ms", "ttft=0ms", "wait=3s", "itl=-1ms", "itl=1s,itl=2s", ","]
)
def test_levels_that_cannot_be_read_name_what_is_wrong(text) -> None:
    with pytest.raises(BenchError, match=r"--slo: expected each of ttft, itl, tpot, e2e"):
        read_service_level(text)


def swept(limit: float, start: float, *, is_whole: bool = False, count: int = 200) -> tuple[float, Sweep]:
    """A sweep of a server that answers within a second up to `limit` requests a second, and above it keeps none."""

    async def run(load: float) -> list[RequestRecord]:
        took = 0.5 if load <= limit else 2.0
        moments = [i / load for i in range(count)]
        return [RequestRecord(moment, moment + took, OK, [moment + took], [1]) for moment in moments]

    sweep = Sweep(run, ServiceLevel(e2e=1000.0), is_whole=is_whole)
    return asyncio.run(sweep.highest(start)), sweep


@pytest.mark.parametrize("start", [0.5, 1.0, 40.0])
@pytest.mark.parametrize("limit", [3.3, 17.0])
def test_a_sweep_finds_the_highest_rate_from_below_and_above(limit, start) -> None:
    found, sweep = swept(limit, start)
    assert limit / TOLERANCE <= found <= limit
    assert len(sweep.shares) <= 2 + abs(math.log2(limit / start)) + 5
    assert sweep.shares[found] == 1.0
    assert sweep.records[1].sent == pytest.approx(1 / found), "the records are those of what was kept"


@pytest.mark.parametrize("limit", range(1, 12))
def test_a_sweep_of_cameras_ends_at_a_whole_number(limit) -> None:
    assert swept(limit + 0.5, 4, is_whole=True)[0] == limit


def test_a_sweep_gives_up_where_hardly_any_load_keeps_the_level() -> None:
    assert swept(0.01, 1.0)[0] == 0.0
    assert swept(0.5, 4, is_whole=True)[0] == 0.0


def test_a_sweep_with_too_few_requests_says_so() -> None:
    with pytest.raises(BenchError, match="--sweep: at 16 all 5 requests were sent before the first was answered"):
        swept(1e6, 1.0, count=5)


def test_a_level_adds_its_share_to_the_figures(bench, scripted_server) -> None:
    target, _ = scripted_server
    common = ["serve", "--target", target, "--num-prompts", "4", "--input-len", "3", "--output-len", "4"]
    assert bench(*common, "--slo", "e2e=1000s")["slo_share"] == 1.0
    assert bench(*common, "--slo", "e2e=0.001ms")["slo_share"] == 0.0
    assert "slo_share" not in bench(*common)


def test_a_sweep_prices_what_a_device_serves(bench, scripted_server) -> None:
    target, script = scripted_server
    common = ["--input-len", "3", "--output-len", "4", "--num-devices", "2", "--gpu-hour-cost", "1.5", "--sweep"]
    none = bench("serve", "--target", target, "--num-prompts", "2", "--rate", "500", "--slo", "e2e=0.001ms", *common)
    assert (none["slo_rate"], none["cost_per_1k_requests"]) == (0.0, None)
    assert set(none["sweep"].values()) == {0.0}
    asked = [tuple(request.prompt_token_ids.ids) for request in script.requests]
    assert len(set(asked)) == len(asked) == 2 * len(none["sweep"]), "no run helps another"


def test_prices_follow_from_rate_interval_and_devices() -> None:
    rate = swept_figures(Namespace(cameras=None, interval=1.0, gpu_hour_cost=1.8), 10.0, 2)
    assert rate["slo_rate_per_device"] == 5.0
    assert rate["slo_requests_per_device_hour"] == 18_000
    assert rate["cost_per_1k_requests"] == pytest.approx(0.1)
    cameras = swept_figures(Namespace(cameras=4, interval=2.0, gpu_hour_cost=1.8), 90.0, 1)
    assert cameras["slo_cameras"] == 90.0
    assert cameras["slo_requests_per_device_hour"] == 162_000
    assert cameras["cost_per_camera_hour"] == pytest.approx(0.02)
    unknown = swept_figures(Namespace(cameras=None, interval=1.0, gpu_hour_cost=None), 10.0, None)
    assert (unknown["slo_rate"], unknown["slo_rate_per_device"]) == (10.0, None)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--slo", "ttft=fast"], "--slo: expected"),
        (["--sweep"], "--sweep: needs the level to keep"),
        (["--sweep", "--slo", "ttft=1s", "--concurrency", "3"], "leave --concurrency out"),
        (["--gpu-hour-cost", "2"], "give --sweep, too"),
        (["--sweep", "--slo", "ttft=1s", "--gpu-hour-cost", "0"], "--gpu-hour-cost: must be above 0"),
        (["--num-devices", "-2"], "--num-devices: must be above 0"),
        (["--sweep", "--slo", "ttft=1s", "--rate", "0"], "--rate: must be positive"),
    ],
)
def test_bad_levels_are_refused(scripted_server, flags, message, capsys) -> None:
    assert main(["bench", "serve", "--target", scripted_server[0], *flags]) == 1
    assert message in capsys.readouterr().err
