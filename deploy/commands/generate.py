"""`quire generate`: a small client of the public API that streams to the terminal."""

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from quire.deploy.commands.connect import add_connection_arguments, connect, failure
from quire.deploy.flags.arguments import UsageError
from quire.proto.api import (
    Chat,
    ChatMessage,
    ContentPart,
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
from quire.proto.process import exit_codes
from quire.proto.process.visible import visible

DESCRIPTION = "Send one prompt to a running `quire serve` and print the text as it is made."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help="the prompt; - reads it from standard input")
    add_connection_arguments(parser)
    parser.add_argument("--model", metavar="NAME", help="one of the served names (default: the served model)")
    parser.add_argument("--chat", action="store_true", help="send TEXT as a chat message of the user")
    parser.add_argument(
        "--image", action="append", default=[], metavar="FILE", help="an image that TEXT, a chat then, is about"
    )
    parser.add_argument("--video", action="append", default=[], metavar="FILE", help="a video, as --image an image")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="(default: the server's)")
    parser.add_argument("--temperature", type=float, metavar="X", help="0 is greedy (default: the model's)")
    parser.add_argument("--top-p", type=float, metavar="X")
    parser.add_argument("--top-k", type=int, metavar="N")
    parser.add_argument("--seed", type=int, metavar="N", help="same seed, same text (default: the server chooses)")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this; may be repeated")
    parser.add_argument("--n", type=int, metavar="N", help="outputs; more than one are printed when complete")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end instead of a stream")


def run(arguments: argparse.Namespace) -> int:
    """0 when every output ended well, 1 otherwise. Raises `UsageError` for a target or file that cannot be used."""
    client = connect(arguments, os.environ.get("QUIRE_API_KEY", "").partition(" ")[0] or None)
    printer = AnswerPrinter(stream=not arguments.json and arguments.n in (None, 1))
    try:
        printer.take(client.stream(_request(arguments)))
    except RequestError as error:
        print(failure(error, arguments), file=sys.stderr)
        return exit_codes.FAILED
    finally:
        client.close()
    if arguments.json:
        print(visible(msgspec.json.encode(printer.summary()).decode()))
    else:
        printer.print_rest()
    return exit_codes.SUCCESS if printer.ended_well else exit_codes.FAILED


def _request(arguments: argparse.Namespace) -> GenerateRequest:
    text = sys.stdin.read() if arguments.text == "-" else arguments.text
    media: list[ContentPart] = [ImagePart(data=_bytes("--image", path)) for path in arguments.image]
    media += [VideoPart(data=_bytes("--video", path)) for path in arguments.video]
    content = [*media, TextPart(text)] if media else text
    return GenerateRequest(
        input=Chat([ChatMessage("user", content)]) if arguments.chat or media else text,
        model=arguments.model,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        seed=arguments.seed,
        n=arguments.n,
        max_tokens=arguments.max_tokens,
        stop=tuple(arguments.stop),
    )


def _bytes(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}") from error


class AnswerPrinter:
    """The events of one request, printed as they come or kept for the end."""

    def __init__(self, stream: bool) -> None:
        self._stream = stream
        self._shown: Callable[[str], str] = visible if sys.stdout.isatty() else str
        """A file gets the text as it is."""
        self._begin = time.monotonic()
        self._first_token_seconds = 0.0
        self._texts: defaultdict[int, str] = defaultdict(str)
        self._finished: dict[int, Finished] = {}
        self._started: Started | None = None

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Started():
                    self._started = event
                case Delta():
                    self._first_token_seconds = self._first_token_seconds or time.monotonic() - self._begin
                    self._texts[event.output_index] += event.text
                    if self._stream:
                        print(self._shown(event.text), end="", flush=True)
                case Finished():
                    self._finished[event.output_index] = event

    @property
    def ended_well(self) -> bool:
        return bool(self._finished) and all(
            finished.finish_reason in ("stop", "length") for finished in self._finished.values()
        )

    def print_rest(self) -> None:
        """Print what was not streamed, then one line of figures on standard error."""
        if self._stream:
            print()
        else:
            for index in sorted(self._finished):
                print(f"--- output {index}\n{self._shown(self._texts[index])}")
        seconds = time.monotonic() - self._begin
        num_tokens = sum(finished.usage.completion_tokens for finished in self._finished.values())
        reasons = ", ".join(_reason(finished) for _, finished in sorted(self._finished.items()))
        figures = f"{num_tokens} tokens in {seconds:.2f} s, first after {self._first_token_seconds:.3f} s"
        print(visible(f"[{figures}; {reasons}]"), file=sys.stderr)

    def summary(self) -> dict[str, object]:
        started = self._started
        return {
            "request_id": started.request_id if started else "",
            "model": started.model if started else "",
            "outputs": [
                {
                    "index": index,
                    "text": self._texts[index],
                    "finish_reason": finished.finish_reason,
                    "error": finished.error.message if finished.error else None,
                    "usage": msgspec.structs.asdict(finished.usage),
                }
                for index, finished in sorted(self._finished.items())
            ],
        }


def _reason(finished: Finished) -> str:
    return f"{finished.finish_reason}: {finished.error.message}" if finished.error else finished.finish_reason
