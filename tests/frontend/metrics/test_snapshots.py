"""What frontends share of their metrics: any of them answers for all, and none is lost with its process."""

import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest

from quire.frontend.metrics.metrics import Metrics
from quire.frontend.telemetry.snapshots import Snapshot, Snapshots, total
from quire.proto.api import GenerateRequest
from quire.proto.messages.introspection import Distribution, Figure

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from metrics_page import answer_five, run, scrape


def test_any_frontend_answers_for_all_and_a_dead_one_is_remembered(serving, tmp_path):
    before = Metrics(index=1)
    before.arrived("http")
    before.interval(0.5)
    before.num_open = lambda: 7
    dead = Snapshots(before, str(tmp_path), 1)
    alive = dead.write()

    async def case(s):
        s.scheduler.script = partial(answer_five, s)
        await s.client.generate(GenerateRequest(input="hello", max_tokens=5))
        page, _ = await scrape(s.server)
        assert page("quire_requests_total", door="http") == page("quire_requests_total", door="grpc") == 1
        assert page("quire_inter_token_latency_seconds_count") == 5
        assert page("quire_requests_in_flight") == 7
        assert page("quire_frontends") == 2
        gone = msgspec.structs.replace(alive, written_at=alive.written_at - 60)
        (tmp_path / "metrics" / "frontend-1.bin").write_bytes(msgspec.msgpack.encode(gone))
        page, _ = await scrape(s.server)
        assert page("quire_requests_total", door="http") == 1
        assert page("quire_requests_in_flight") == 0
        assert page("quire_frontends") == 1
        assert ("quire_frontend_memory_bytes", frozenset({("frontend", "1")})) not in page.samples

    run(serving, case, run_dir=str(tmp_path))


def test_a_restarted_frontend_goes_on_where_the_one_before_it_stopped(serving, tmp_path):
    async def case(s):
        s.scheduler.script = partial(answer_five, s)
        await s.client.generate(GenerateRequest(input="hello", max_tokens=5))

    async def again(s):
        await case(s)
        page, _ = await scrape(s.server)
        assert page("quire_requests_total", door="grpc") == 2
        assert page("quire_inter_token_latency_seconds_count") == 8
        assert page("quire_generation_tokens_total") == 10

    run(serving, case, run_dir=str(tmp_path))
    run(serving, again, run_dir=str(tmp_path))


def test_a_broken_snapshot_is_left_out(serving, tmp_path):
    folder = tmp_path / "metrics"
    folder.mkdir()
    (folder / "frontend-0.bin").write_bytes(b"\xc1")
    (folder / "frontend-9.bin").write_bytes(b"half of a")

    async def case(s):
        page, _ = await scrape(s.server)
        assert page("quire_frontends") == 1

    run(serving, case, run_dir=str(tmp_path))


def test_what_hinders_snapshots_for_long_is_logged_when_it_begins_and_when_it_is_over(tmp_path, caplog):
    snapshots = Snapshots(Metrics(), str(tmp_path), 0)
    folder, gone = tmp_path / "metrics", tmp_path / "gone"
    other = folder / "frontend-9.bin"
    other.write_bytes(b"half of a")
    for _ in range(3):
        snapshots.all()
    folder.rename(gone)
    for _ in range(3):
        snapshots.write()
    gone.rename(folder)
    own = folder / "frontend-0.bin"
    other.write_bytes(own.read_bytes())
    for _ in range(3):
        assert len(snapshots.all()) == 2
    unread, unwritten, *over = [record.message for record in caplog.records]
    assert unread.startswith(f"metrics snapshot {other} is not read: ")
    assert unwritten.startswith(f"metrics snapshot {own}: No such file or directory: ")
    assert over == [
        f"metrics snapshot {own}: is written again",
        f"metrics snapshot {other}: is read again",
    ]


def test_a_run_directory_that_cannot_be_used_is_named_at_the_start(tmp_path):
    with pytest.raises(ValueError, match=r"run_dir .*missing: No such file"):
        Snapshots(Metrics(), str(tmp_path / "missing"), 0)


def test_of_the_one_before_it_a_frontend_goes_on_only_with_what_is_counted_and_known():
    metrics = Metrics()
    counted = Figure("generation_tokens_total", 5.0)
    metrics.resume_from((Figure("unheard_of", 1.0), Figure("requests_in_flight", 7.0), counted), ())
    values = [(one.name, one.value) for one in metrics.samples()]
    assert ("generation_tokens_total", 5.0) in values
    assert [value for name, value in values if name == "requests_in_flight"] == [0]
    assert "unheard_of" not in dict(values)


def test_histograms_of_another_version_do_not_spoil_the_sum():
    name = "inter_token_latency_seconds"
    ours = Snapshot(0.0, (Figure("unheard_of", 1.0),), (Distribution(name, (1.0, 2.0), (1, 2, 3), 9.0),))
    other = Snapshot(0.0, (), (Distribution(name, (5.0,), (1, 1), 6.0),))
    samples, distributions = total([ours, other], now=1.0)
    assert distributions == [ours.distributions[0]]
    assert samples == [Figure("frontends", 2)]
