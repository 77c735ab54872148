"""`quire generate` as a user of a terminal sees it; the server is a stand-in behind the client's interface."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from quire.deploy.__main__ import main
from quire.proto import client
from quire.proto.api import (
    Chat,
    Delta,
    Event,
    Finished,
    GenerateRequest,
    ImagePart,
    RequestError,
    Started,
    TextPart,
    VideoPart,
)
from quire.proto.messages.message import Usage

USAGE = Usage(3, 0, 2, 0.0, 0.0, 0.0)


class StandInClient:
    """Answers with `events` and keeps what it was asked."""

    events: tuple[Event | RequestError, ...] = ()
    asked: GenerateRequest
    target: str
    api_key: str | None
    tls: dict[str, object]

    def __init__(self, target: str, api_key: str | None = None, **tls: object) -> None:
        StandInClient.target, StandInClient.api_key, StandInClient.tls = target, api_key, tls

    def stream(self, request: GenerateRequest) -> Iterator[Event]:
        StandInClient.asked = request
        for event in self.events:
            if isinstance(event, RequestError):
                raise event
            yield event

    def close(self) -> None:
        StandInClient.closed = True


@pytest.fixture
def server(monkeypatch) -> type[StandInClient]:
    monkeypatch.setattr(client, "Client", StandInClient)
    monkeypatch.delenv("QUIRE_API_KEY", raising=False)
    started = Started("r1", "m", 3)
    end = Finished(0, "length", USAGE)
    monkeypatch.setattr(StandInClient, "events", (started, Delta(0, "Hel", [1]), Delta(0, "lo", [2]), end))
    return StandInClient


def test_text_is_streamed_to_standard_output_and_figures_to_standard_error(server, capsys) -> None:
    assert main(["generate", "Say it", "--max-tokens", "2", "--target", "h:1"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Hello\n"
    assert captured.err.startswith("[2 tokens in ")
    assert "; length]" in captured.err
    assert server.target == "h:1"
    assert server.api_key is None
    assert not any(server.tls.values())
    assert server.asked.input == "Say it"
    assert server.asked.max_tokens == 2
    assert server.asked.temperature is None  # what was not said is the server's to choose


def test_every_flag_reaches_the_request(server, tmp_path) -> None:
    key = tmp_path / "keys"
    key.write_text("# of team A\n\nsecret\nother\n")
    code = main(
        [
            "generate",
            "hi",
            "--chat",
            "--model",
            "m",
            "--temperature",
            "0",
            "--top-p",
            "0.5",
            "--top-k",
            "3",
            "--seed",
            "-1",
            "--stop",
            "a",
            "--stop",
            "b",
            "--n",
            "1",
            "--api-key-file",
            str(key),
        ]
    )
    assert code == 0
    asked = server.asked
    assert isinstance(asked.input, Chat)
    assert (asked.input.messages[0].role, asked.input.messages[0].content) == ("user", "hi")
    assert (asked.model, asked.temperature, asked.top_p, asked.top_k, asked.seed) == ("m", 0.0, 0.5, 3, -1)
    assert (tuple(asked.stop), asked.n) == (("a", "b"), 1)
    assert server.api_key == "secret"


def test_images_are_files_before_the_text_of_a_chat(server, tmp_path, capsys) -> None:
    (tmp_path / "a.png").write_bytes(b"one")
    (tmp_path / "b.jpg").write_bytes(b"two")
    files = ["--image", str(tmp_path / "a.png"), "--image", str(tmp_path / "b.jpg")]
    assert main(["generate", "what?", *files]) == 0
    asked = server.asked.input
    assert isinstance(asked, Chat)
    (turn,) = asked.messages
    assert [image.data for image in turn.images] == [b"one", b"two"]
    assert (turn.parts[-1], turn.text) == (TextPart("what?"), "what?")
    assert main(["generate", "what?", "--image", str(tmp_path / "none")]) == 2
    assert f"--image {tmp_path / 'none'}: No such file" in capsys.readouterr().err


def test_videos_are_files_behind_the_images_of_a_chat(server, tmp_path, capsys) -> None:
    (tmp_path / "a.png").write_bytes(b"one")
    (tmp_path / "b.mp4").write_bytes(b"two")
    files = ["--video", str(tmp_path / "b.mp4"), "--image", str(tmp_path / "a.png")]
    assert main(["generate", "what?", *files]) == 0
    asked = server.asked.input
    assert isinstance(asked, Chat)
    (turn,) = asked.messages
    assert list(turn.parts) == [ImagePart(data=b"one"), VideoPart(data=b"two"), TextPart("what?")]
    assert main(["generate", "what?", "--video", str(tmp_path / "none")]) == 2
    assert f"--video {tmp_path / 'none'}: No such file" in capsys.readouterr().err


def test_a_dash_reads_standard_input(server, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert main(["generate", "-"]) == 0
    assert server.asked.input == "from a pipe"


def test_json_is_one_object(server, capsys) -> None:
    assert main(["generate", "x", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["request_id"] == "r1"
    assert answer["outputs"][0]["text"] == "Hello"
    assert answer["outputs"][0]["finish_reason"] == "length"
    assert answer["outputs"][0]["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("flags", [[], ["--json"], ["--n", "2"]])
def test_text_can_do_nothing_to_a_terminal_and_reaches_a_file_as_it_is(server, capsys, monkeypatch, flags) -> None:
    text = "a\tb\n\x9b2J\u202ec 👩\u200d💻"
    monkeypatch.setattr(server, "events", (Started("r1", "m", 3), Delta(0, text, [1]), Finished(0, "length", USAGE)))
    main(["generate", "x", *flags])
    in_file = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    main(["generate", "x", *flags])
    on_terminal = capsys.readouterr().out
    if flags == ["--json"]:
        assert json.loads(in_file)["outputs"][0]["text"] == json.loads(on_terminal)["outputs"][0]["text"] == text
    else:
        assert text in in_file
        assert "a\tb\n\\u009b2J\\u202ec 👩\u200d💻\n" in on_terminal
    assert not {*"\x9b\u202e"} & {*on_terminal}


def test_several_outputs_are_not_mixed(server, capsys, monkeypatch) -> None:
    events = (Delta(1, "b1", [1]), Delta(0, "a1", [1]), Delta(1, "b2", [1]), Delta(0, "a2", [1]))
    ends = (Finished(1, "stop", USAGE), Finished(0, "stop", USAGE))
    monkeypatch.setattr(server, "events", (Started("r", "m", 1), *events, *ends))
    assert main(["generate", "x", "--n", "2"]) == 0
    assert capsys.readouterr().out == "--- output 0\na1a2\n--- output 1\nb1b2\n"


def test_a_refused_request_is_one_line_and_exit_code_1(server, capsys, monkeypatch) -> None:
    refused = RequestError("INVALID_PARAMETER", "max_tokens: must be at least 1, got 0")
    monkeypatch.setattr(server, "events", (refused,))
    assert main(["generate", "x", "--max-tokens", "0"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "quire: error: max_tokens: must be at least 1, got 0 [INVALID_PARAMETER]\n"


def test_a_failed_output_is_exit_code_1(server, monkeypatch) -> None:
    monkeypatch.setattr(server, "events", (Started("r", "m", 1), Finished(0, "deadline", USAGE)))
    assert main(["generate", "x"]) == 1


def test_a_missing_key_file_is_a_user_error(server, capsys) -> None:
    assert main(["generate", "x", "--api-key-file", "/no/such"]) == 2
    assert capsys.readouterr().err.startswith("quire: error: --api-key-file /no/such")


@pytest.mark.parametrize(
    ("text", "words"), [("# nobody\n", "holds no key"), ("k\u00e9y\n", "visible ASCII"), ("a b\n", "visible ASCII")]
)
def test_a_key_file_without_a_usable_key_is_a_user_error(server, capsys, tmp_path, text, words) -> None:
    key = tmp_path / "keys"
    key.write_text(text)
    assert main(["generate", "x", "--api-key-file", str(key)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("target", ["", "localhost", "localhost:", "localhost:0", "localhost:65536", "localhost:http"])
def test_a_target_without_a_port_is_a_user_error(server, capsys, target) -> None:
    assert main(["generate", "x", "--target", target]) == 2
    assert capsys.readouterr().err.startswith("quire: error: --target: must be HOST:PORT")


@pytest.mark.parametrize(("arguments", "words"), [(["x", "--seed", str(2**63)], b"seed: "), (["-"], b"input: ")])
def test_what_cannot_be_sent_is_one_line_and_no_traceback(arguments: list[str], words: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quire.deploy", "generate", *arguments, "--target", "127.0.0.1:1"],
        env=os.environ | {"PYTHONUTF8": "1"},
        input=b"\xff",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"quire: error: " + words)
    assert done.stderr.count(b"\n") == 1


def test_a_reader_that_has_seen_enough_ends_the_command_quietly() -> None:
    program = (
        "import sys; from quire.deploy import __main__ as m; from quire.deploy.commands import doctor;"
        "doctor.run = lambda _: print('x' * 9, flush=True)"
    )
    command = f"{program}; sys.exit(m.main(['doctor']))"
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as nobody_reads:
        done = subprocess.run([sys.executable, "-c", command], stdout=nobody_reads, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_certificate_that_cannot_be_read_is_named(capsys) -> None:
    assert main(["generate", "x", "--tls-ca-file", "/no_such/ca_file.pem"]) == 2
    assert capsys.readouterr().err == "quire: error: --tls-ca-file /no_such/ca_file.pem: No such file or directory\n"


def test_without_a_file_the_key_is_that_of_the_environment(server, monkeypatch) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", "first-key other-key")
    assert main(["generate", "x"]) == 0
    assert server.api_key == "first-key"
