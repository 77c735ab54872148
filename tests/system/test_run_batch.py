"""`quire run-batch` as a user starts it: over a running engine, and over one of its own that is interrupted."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from parts.clock import GUARD, eventually

USER = {"role": "user", "content": "Return the last item of a list."}
GREEDY = {"temperature": 0, "max_tokens": 6}
BODIES = {
    "/v1/chat/completions": {"messages": [USER], **GREEDY},
    "/v1/completions": {"prompt": "def add(a, b):", **GREEDY},
    "/v1/responses": {"input": "def add(a, b):", "temperature": 0, "max_output_tokens": 6},
    "/v1/messages": {"model": "quire-default", "messages": [USER], **GREEDY},
}


def written(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def line(custom_id: str, url: str, body: dict) -> dict:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def answers(path: Path) -> dict[str, dict]:
    found = [json.loads(one) for one in path.read_text().splitlines()]
    assert len({one["custom_id"] for one in found}) == len(found)
    return {one["custom_id"]: one for one in found}


def text_of(body: dict) -> str:
    kept = body.get("choices") or body.get("output") or body["content"]
    return json.dumps([one.get("message") or one.get("text") or one.get("content") for one in kept])


def test_every_route_answers_as_it_does_by_itself_and_a_bad_line_ends_nothing(shared_engine, quire, tmp_path):
    url = f"http://{shared_engine.http}"
    lines = [line(path, path, body) for path, body in BODIES.items()]
    lines += [line("bad", "/v1/completions", {"prompt": ""}), line("odd", "/v1/images", {})]
    source, target = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    done = quire("run-batch", "-i", str(source), "-o", str(target), "--url", f"{url}/v1")
    assert done.returncode == 1, done.stderr
    assert "4 answered, 2 failed" in done.stderr
    found = answers(target)
    for path, body in BODIES.items():
        response = found[path]["response"]
        theirs = httpx.post(url + path, json=body, trust_env=False, timeout=GUARD).json()
        assert (found[path]["error"], response["status_code"]) == (None, 200)
        assert text_of(response["body"]) == text_of(theirs)
        assert response["request_id"]
    assert found["bad"]["response"]["status_code"] == 400
    assert found["bad"]["response"]["body"]["error"]["param"] == "prompt"
    assert (found["odd"]["response"], found["odd"]["error"]["code"]) == (None, "invalid_request")
    again = quire("run-batch", "-i", str(source), "-o", str(target), "--url", url)
    assert (again.returncode, "--resume" in again.stderr) == (2, True)


def test_vectors_and_scores(embedding_engine, quire, tmp_path):
    lines = [
        line("e", "/v1/embeddings", {"model": "minilm", "input": "one"}),
        line("s", "/v1/score", {"model": "minilm", "text_1": "one", "text_2": ["one", "two"]}),
        line("r", "/v1/rerank", {"model": "minilm", "query": "one", "documents": ["two", "one"]}),
    ]
    source, target = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    done = quire("run-batch", "-i", str(source), "-o", str(target), "--url", f"http://{embedding_engine.http}")
    assert done.returncode == 0, done.stderr
    bodies = {name: one["response"]["body"] for name, one in answers(target).items()}
    assert len(bodies["e"]["data"][0]["embedding"]) == 384
    assert [item["index"] for item in bodies["r"]["results"]] == [1, 0]
    assert len(bodies["s"]["data"]) == 2


def test_an_engine_of_its_own_is_interrupted_and_another_run_goes_on(shared_engine, quire, tmp_path, monkeypatch):
    lines = [line(f"n{n}", "/v1/completions", {"prompt": "def", "seed": n, "max_tokens": 64}) for n in range(60)]
    source, target = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    words = ["run-batch", "-i", str(source), "-o", str(target)]
    command = [sys.executable, "-P", "-m", "quire.deploy", *words, "--num-threads=1", "--concurrency=2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: process.poll() is not None or (target.exists() and target.stat().st_size > 0))
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=GUARD)
    finally:
        process.kill()
    assert process.returncode == 130, log
    first = target.read_bytes()
    before = answers(target)
    assert 0 < len(before) < 60
    done = quire(*words, "--resume", "--url", f"http://{shared_engine.http}")
    assert done.returncode == 0, done.stderr
    assert f"{len(before)} answers are there already" in done.stderr
    assert target.read_bytes().startswith(first)
    assert set(answers(target)) == {one["custom_id"] for one in lines}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-i", "no/such", "-o", "OUT"), "-i no/such: No such file"),
        (("-i", "IN", "-o", "no/such/out"), "-o no/such/out: No such file"),
        (("-i", "IN", "-o", "IN"), "is the file of requests"),
        (("-i", "IN", "-o", "OUT", "--url", "localhost:8000"), "--url: must be http(s)://HOST:PORT"),
        (("-i", "IN", "-o", "OUT", "--url", "http://h:1", "--seed", "3"), "--url: asks an engine that runs already"),
        (("-i", "IN", "-o", "OUT", "--concurrency", "0"), "--concurrency: must be in [1, 1024], got 0"),
        (("-o", "OUT"), "-i/--input-file"),
    ],
)
def test_what_must_be_changed_first_is_said_in_a_line(quire, tmp_path, arguments, words):
    source = written(tmp_path / "in.jsonl", [line("a", "/v1/completions", {"prompt": "x"})])
    known = {"IN": str(source), "OUT": str(tmp_path / "out.jsonl")}
    done = quire("run-batch", *(known.get(one, one) for one in arguments))
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not os.path.exists(known["OUT"])


def test_with_a_wrong_key_nothing_is_written(locked_engine, quire, tmp_path, monkeypatch):
    from said import KEY

    source = written(tmp_path / "in.jsonl", [line("a", "/v1/completions", {"prompt": "x", "max_tokens": 2})])
    words = ("run-batch", "-i", str(source), "-o", str(tmp_path / "out"), "--url", f"http://{locked_engine.http}")
    monkeypatch.setenv("QUIRE_API_KEY", "some-wrong-key")
    done = quire(*words)
    assert (done.returncode, "name one with --api-key-file" in done.stderr) == (1, True)
    assert (tmp_path / "out").read_bytes() == b""
    monkeypatch.setenv("QUIRE_API_KEY", KEY)
    assert quire(*words, "--resume").returncode == 0
