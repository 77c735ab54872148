"""What is prepared for a GPU machine: the plan of half an hour, the wheels, the compiled kernels."""

import json
import random
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts find each other as plain modules, because they are run from this folder."""
    monkeypatch.syspath_prepend(str(HERE))


def test_the_calls_fit_half_an_hour_and_each_ten_minutes() -> None:
    import calls

    assert calls.START_SECONDS + calls.IDLE_SECONDS >= 60
    assert calls.total_seconds() <= calls.TOTAL_SECONDS
    assert calls.total_seconds() >= sum(call.seconds + 60 for call in calls.CALLS)
    assert all(call.seconds < 600 for call in calls.CALLS)


def test_the_scripts_of_a_call_end_by_themselves_before_it_is_stopped() -> None:
    import bench
    import calls
    import check

    own = {"gpu-check": check.SCRIPT.seconds, "gpu-bench": bench.SCRIPT.seconds}
    for call in calls.CALLS:
        seconds = 0.0
        for command in call.commands:
            said = re.search(r"--seconds (\d+)", command)
            seconds += float(said[1]) if said else own[command.split()[1]]
        assert seconds + 20 <= call.seconds, call.commands


def test_every_part_of_the_scripts_is_in_one_call() -> None:
    import bench
    import calls
    import check

    planned = [part for call in calls.CALLS for part in call.parts]
    known = [f"{script.kind}: {part}" for script in (check.SCRIPT, bench.SCRIPT) for part in script.parts]
    assert sorted(planned) == sorted(known)


def test_every_row_of_the_results_names_its_part_and_call_or_says_that_none_runs_it() -> None:
    import calls

    rows = calls.rows()
    assert len(rows) > 40
    texts = {
        line.split("|")[1].strip(): line for line in calls.RESULTS.read_text().splitlines() if line.startswith("|")
    }
    for name, runs in rows.items():
        assert runs or "| none: " in texts[name], name
        for part, number in runs:
            assert calls.number_of(part) == number, name


def test_the_plan_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    import calls

    calls.main()
    printed = capsys.readouterr().out
    assert printed.startswith("Before each: make gpu-wheels")
    assert printed.count("give the machine back at once") == len(calls.CALLS)
    assert "pages of 64 tokens and more" in printed
    assert [word in printed for word in ("Call 3", "make gpu-check", "make gpu-bench", calls.WHEELS)] == [True] * 4


def test_every_wheel_is_pinned_and_protobuf_is_not_older_than_our_generated_code() -> None:
    import wheels

    pins = wheels.pinned()
    assert {*wheels.SCRIPTS, *wheels.SERVER} <= pins.keys()
    text = (wheels.ROOT / "proto" / "generated" / "quire_pb2.py").read_text()
    generated = text.split("# Protobuf Python Version: ")[1].split()[0]
    assert wheels._numbers(pins["protobuf"]) >= wheels._numbers(generated)


def test_a_wheel_is_used_where_it_fits_and_nothing_as_new_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wheels

    here = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    names = {
        f"quire_lacks-1.0-{here}-{here}-manylinux_2_17_x86_64.whl": True,
        "quire_stable-1.0-cp39-abi3-manylinux_2_17_x86_64.whl": True,
        "quire_other-1.0-cp27-cp27m-manylinux1_x86_64.whl": False,
        "msgspec-0.0.1-py3-none-any.whl": False,
        "msgspec-999.0-py3-none-any.whl": True,
    }
    for name, wanted in names.items():
        assert (wheels.fits(tmp_path / name) and wheels.is_newer(tmp_path / name)) == wanted, name
    with zipfile.ZipFile(tmp_path / "quire_lacks-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("quire_lacks.py", "here = True")
    monkeypatch.setenv("PYTHONPATH", "before")
    monkeypatch.setattr(sys, "path", list(sys.path))
    wheels.provide(tmp_path)
    import quire_lacks

    assert quire_lacks.here
    assert wheels.os.environ["PYTHONPATH"] == f"{sys.path[0]}:before"


def test_compiled_kernels_are_found_where_they_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import compiled
    from triton import knobs
    from triton.runtime.cache import FileCacheManager

    def at(folder: Path) -> FileCacheManager:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
        monkeypatch.setattr(knobs.cache, "dir", str(folder))
        return FileCacheManager("KEY")

    written = at(tmp_path / "here")
    group = {name: written.put(b"content", name) for name in ("k.json", "k.cubin", "k.ttir")}
    written.put_group("k.json", group)
    monkeypatch.setenv("OUT", str(tmp_path))
    compiled.save(tmp_path / "kept" / "triton.tar.gz")
    assert (tmp_path / "triton.tar.gz").exists()
    for file in (tmp_path / "here" / "KEY").iterdir():
        file.unlink()

    there = at(tmp_path / "there")
    compiled.read(tmp_path / "triton.tar.gz")
    found = there.get_group("k.json")
    assert {name: Path(path).parent for name, path in found.items()} == dict.fromkeys(
        ("k.json", "k.cubin"), tmp_path / "there" / "KEY"
    )
    assert json.loads((tmp_path / "there" / "KEY" / "__grp__k.json").read_text())["child_paths"].keys() == group.keys()


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Triton's files would lie, with two small kernels and a large one."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    monkeypatch.delenv("OUT", raising=False)
    for name, size in (("A", 1000), ("B", 50_000), ("C", 1000)):
        (folder / name).mkdir(parents=True)
        (folder / name / "k.json").write_text("{}")
        (folder / name / "k.cubin").write_bytes(random.Random(name).randbytes(size))
    return folder


def test_compiled_kernels_that_cannot_be_kept_do_not_end_the_run(
    cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import compiled

    (tmp_path / "a file").write_text("")
    compiled.save(tmp_path / "a file" / "triton.tar.gz")
    assert "triton cache: not kept: " in capsys.readouterr().out
    monkeypatch.setenv("OUT", str(tmp_path / "a file"))
    compiled.save(tmp_path / "triton.tar.gz")
    assert "triton cache: not kept: " in capsys.readouterr().out


def test_what_does_not_fit_the_archive_is_left_out_largest_first_and_named(
    cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import compiled

    path = tmp_path / "triton.tar.gz"
    assert compiled.MOST_BYTES == 16 << 20
    monkeypatch.setattr(compiled, "MOST_BYTES", 30_000)
    compiled.save(path)
    assert path.stat().st_size <= 30_000
    with tarfile.open(path) as archive:
        assert sorted(archive.getnames()) == ["A/k.cubin", "A/k.json", "C/k.cubin", "C/k.json"]
    assert "1 kernels of 0.1 MB did not fit" in capsys.readouterr().out


def test_the_commit_travels_in_a_file_where_git_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wheels
    from fact_checks import commit

    monkeypatch.setattr(wheels, "COMMIT", tmp_path / "commit")
    here = commit("unknown")
    assert here == "unknown"
    wheels.note_commit()
    noted = (tmp_path / "commit").read_text().strip()
    assert re.fullmatch(r"[0-9a-f]{12}\+?", noted)
    assert commit("unknown") == noted
    assert commit("abc") == "abc"
