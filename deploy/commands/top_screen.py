"""One engine's status as text for a terminal."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from quire.proto.api import EngineLoad, EngineStatus, LiveOutput, ServerInfo, StepRecord
from quire.proto.metrics.rates import Rates, rates
from quire.proto.process.visible import visible

BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 60
BAR_WIDTH = 40
STYLES = {"ready": "green", "starting": "yellow", "recovering": "yellow", "draining": "yellow", "failed": "bold red"}
PLAIN_LINES = 1000


class TopScreen:
    """The screen of `quire top`: it draws as much of a status as fits."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._console = Console(highlight=False)
        self._live: Live | None = None
        self._drawn: Group | Text = Text()

    @property
    def is_terminal(self) -> bool:
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def live(self) -> AbstractContextManager[Live]:
        """A context in which every `show` is seen at once."""
        self._live = Live(self._drawn, console=self._console, screen=True, auto_refresh=False)
        return self._live

    def show(self, info: ServerInfo, status: EngineStatus) -> None:
        lines = self._console.height if self._live is not None else PLAIN_LINES
        self._drawn = draw(self._target, info, status, lines)
        self._refresh()

    def lose(self, message: str) -> None:
        """Show that the server does not answer any more, above what was known last."""
        self._drawn = Group(Text(visible(f"no answer: {message}"), "bold red"), self._drawn)
        self._refresh()

    def print(self) -> None:
        self._console.print(self._drawn)

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._drawn, refresh=True)


def draw(target: str, info: ServerInfo, status: EngineStatus, lines: int) -> Group:
    """`lines`: how many there are; requests that do not fit are counted in words."""
    load, measured = status.load, rates(status.steps, status.now)
    head = Table.grid(padding=(0, 2))
    head.add_column(style="dim")
    head.add_column(overflow="fold")
    hits = f"{load.prefix_hits} of {load.prefix_queries} tokens{_share(load.prefix_hits, load.prefix_queries)}"
    decode, prefill = measured.decode_tokens_per_second, measured.prefill_tokens_per_second
    waiting = f"{load.num_waiting} wait with {load.waiting_tokens} tokens"
    for title, text in (
        ("tokens/s", f"{decode:.1f} decode, {prefill:.1f} prefill"),
        ("steps", _steps(status.steps, measured)),
        ("", sparkline([_seconds(step) for step in status.steps[-SPARK_WIDTH:]])),
        ("a step", _parts(measured)),
        ("KV blocks", kv_bar(load)),
        ("queue", f"{load.num_running} of {info.max_num_seqs} run, {waiting}"),
        ("prefix hits", hits),
        ("outputs", f"{load.num_finished} ended, {load.num_rejected} rejected, {load.num_preemptions} preemptions"),
    ):
        head.add_row(title, text)
    return Group(_title(target, info, load), head, Text(), *_requests(status.outputs, max(3, lines - 15)))


def _title(target: str, info: ServerInfo, load: EngineLoad) -> Text:
    state = (visible(load.state), STYLES.get(load.state, "red"))
    title = Text.assemble(("quire ", "bold"), visible(info.version), "  ", state)
    title.append(visible(f"  epoch {load.epoch} step {load.step}  {', '.join(info.model_names)} at {target}"))
    return title.append(visible(f"  {info.state_detail}" if info.state_detail else ""))


def _seconds(step: StepRecord) -> float:
    return step.device_seconds + step.host_seconds


def _steps(steps: Sequence[StepRecord], measured: Rates) -> str:
    if not steps:
        return "none yet"
    ordered = sorted(_seconds(step) * 1e3 for step in steps)
    p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    rate = f"{measured.steps_per_second:.1f}/s of {measured.rows_per_step:.1f} rows"
    return f"{rate}; the last {len(ordered)} took p50 {p50:.2f} ms, p99 {p99:.2f} ms"


def _parts(measured: Rates) -> str:
    parts = ("schedule", "send", "device", "host", "idle")
    return ", ".join(f"{part} {getattr(measured, f'{part}_seconds') * 1e3:.2f}" for part in parts) + " ms"


def sparkline(values: Sequence[float]) -> str:
    """One character per value, the tallest for the largest."""
    most = max(values, default=0.0)
    if most <= 0:
        return ""
    return "".join(BARS[min(len(BARS) - 1, int(value / most * len(BARS)))] for value in values)


def kv_bar(load: EngineLoad) -> str:
    """Used, fenced and available blocks of the pool."""
    total = load.num_blocks
    if not total:
        return "no worker group is up"
    used = total - load.free_blocks - load.fenced_blocks
    filled = round(used / total * BAR_WIDTH)
    words = f"{used} used, {load.fenced_blocks} fenced, {load.free_blocks} available, {load.cached_blocks} cached"
    waste = f"waste {100 * (1 - load.used_slots_share):.0f} %"
    return f"{'█' * filled}{'░' * (BAR_WIDTH - filled)} {100 * used / total:.0f} % of {total}: {words}; {waste}"


def _share(part: int, whole: int) -> str:
    return f" ({100 * part / whole:.0f} %)" if whole else ""


def _requests(outputs: Sequence[LiveOutput], lines: int) -> list[Table | Text]:
    if not outputs:
        return [Text("no request", "dim")]
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("request", overflow="ellipsis", no_wrap=True, min_width=12)
    for name in ("state", "age", "prompt", "cached", "generated", "blocks", "preempted"):
        table.add_column(name, justify="right", no_wrap=True)
    for output in outputs[:lines]:
        generated = f"{output.num_tokens - output.num_prompt}/{output.max_tokens}"
        numbers = (output.num_prompt, output.cached_tokens, generated, output.num_blocks, output.num_preemptions)
        name = f"{output.label} #{output.output_index}" if output.output_index else output.label
        words = [Text(visible(word)) for word in (name, output.state)]
        table.add_row(*words, f"{output.age_seconds:.1f}s", *map(str, numbers))
    rest = len(outputs) - lines
    return [table, Text(f"and {rest} more", "dim")] if rest > 0 else [table]
