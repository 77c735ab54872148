"""Pages of the documentation that are made from the code: `python tests/rules/generated_pages.py` writes them.

It stands here because it reads tables of several folders, which may not import each other.
"""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

import fit_tables

from quire.deploy.commands import serve
from quire.deploy.flags.llama_flags import LLAMA_FLAGS
from quire.deploy.flags.sglang_flags import SGLANG_FLAGS
from quire.deploy.flags.spec import Spec, specs
from quire.deploy.flags.tgi_flags import TGI_FLAGS
from quire.deploy.flags.vllm_flags import BARE, VLLM_FLAGS, VllmFlag
from quire.frontend.metrics.families import FAMILIES
from quire.frontend.parsing.reasoning.table import REASONING_FORMATS
from quire.frontend.parsing.tools.table import TOOL_FORMATS
from quire.frontend.telemetry import vllm_names
from quire.frontend.telemetry.scrape import PREFIX
from quire.proto.metrics.families import SCHEDULER_FAMILIES

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "python tests/rules/generated_pages.py"
MADE = f"<!-- Made by `{COMMAND}`; a test compares it with the code. -->"

Row = tuple[str, ...]


def table(head: Row, rows: Iterable[Row]) -> str:
    """A Markdown table; a bar inside a cell is escaped."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def code(*words: str) -> str:
    return ", ".join(f"`{word}`" for word in words)


def options_page() -> str:
    """Every flag of `quire serve`."""
    parser = argparse.ArgumentParser(add_help=False)
    serve.add_arguments(parser)
    fields = {spec.field for spec in specs()}
    shown = [one for one in parser._actions if one.help != argparse.SUPPRESS]
    others = [one for one in shown if one.dest not in fields]
    text = f"""{MADE}
# Options of `quire serve`

Each option is a flag and, without the dashes in front, a key of the YAML file that `--config` names; the command line
wins. `--max_model_len` is `--max-model-len`. A switch is turned off by `--no-` before its name. Sizes read `4K`, `12K`,
`8GiB`. What the most important ones do together stands in [OPERATING.md](OPERATING.md).

## command

{table(("option", "meaning"), (_other_row(one) for one in others))}"""
    for group in dict.fromkeys(spec.flag.group for spec in specs()):
        rows = (_option_row(spec) for spec in specs() if spec.flag.group == group)
        text += f"\n## {group}\n\n{table(('option', 'default', 'meaning'), rows)}"
    return f"""{text}
## Flags of other engines alone

Flags of `vllm serve`, of old releases too, of `llama-server`, SGLang and text-generation-inference, that quire has
under no name, or under another. Those with "its values" are options of ours, which the third column names. With
another value of the second column they change nothing here, and with "any" no answer: the start says the third. With
any other value they are refused, and the refusal says the third.

{_other_flags("vLLM", VLLM_FLAGS)}
{_other_flags("llama-server", LLAMA_FLAGS)}
{_other_flags("SGLang", SGLANG_FLAGS)}
{_other_flags("text-generation-inference", TGI_FLAGS)}"""


def _other_row(action: argparse.Action) -> Row:
    return code(*action.option_strings or [str(action.metavar)]), action.help or ""


def _option_row(spec: Spec) -> Row:
    value = " ".join(filter(None, ["|".join(spec.choices), spec.flag.metavar]))
    is_value = spec.default_text and not spec.flag.default and spec.kind != "switch"
    name = code(f"--{spec.name} {value}".strip(), *spec.flag.also)
    return name, code(spec.default_text) if is_value else spec.default_text, spec.flag.help


def _other_flags(engine: str, flags: Mapping[str, VllmFlag]) -> str:
    return table((f"flag of {engine}", "taken with", "what happens"), (_other_flag_row(*one) for one in flags.items()))


def _other_flag_row(name: str, flag: VllmFlag) -> Row:
    same = ["no value" if value == BARE else f"`{value}`" for value in flag.same]
    if flag.means or (flag.speed and not same):
        same = ["its values" if flag.means else "any"]
    return code(f"--{name}", *flag.also), ", ".join(same), flag.why


def metrics_page() -> str:
    """Every series of `/metrics`."""
    own = ((name, one.kind, one.labels, one.help) for name, one in FAMILIES.items())
    scheduler = ((name, one.kind, one.labels, one.help) for name, one in SCHEDULER_FAMILIES.items())
    head = ("name", "kind", "labels", "meaning")
    sources = {name: source for name, (source, _) in (vllm_names.SAME | vllm_names.OLD).items()}
    vllm = (
        (code(vllm_names.PREFIXES[0] + name), kind, code(PREFIX + sources[name]) if name in sources else "", help)
        for name, (kind, help) in vllm_names.MEANINGS.items()
    )
    return f"""{MADE}
# Metrics

The series of `GET /metrics`, in Prometheus' text format or OpenMetrics. One scrape of any frontend yields those of all
frontends of the engine and of its scheduler. A histogram `x` has the samples `x_bucket`, `x_sum` and `x_count`. What to
watch, dashboards and alerts: [OPERATING.md](../deploy/OPERATING.md).

## Frontends

{table(head, (_metric_row(*row) for row in own))}
## Scheduler and workers

{table(head, (_metric_row(*row) for row in scheduler))}
## Names of vLLM

With `--vllm-metric-names` the page also has these, each with the labels `engine` and `model_name`, and all of
them a second time with `vllm_` for `vllm:`.

{table(("name", "kind", "the same as", "meaning"), vllm)}"""


def _metric_row(name: str, kind: str, labels: tuple[str, ...], help: str) -> Row:
    return code(PREFIX + name), kind, code(*labels) if labels else "", help


def parsers_page() -> str:
    """Every format of tool calls and of reasoning."""
    calls = ((code(row.name), code(*row.aliases), row.models, code(*row.template_signs)) for row in TOOL_FORMATS)
    thoughts = ((code(row.name), code(*row.aliases), row.models, code(*row.signs)) for row in REASONING_FORMATS)
    head = ("name", "other names", "models", "shown by")
    return f"""{MADE}
# Formats of tool calls and reasoning

Models write calls, and what they think, each in a way of their own. `--tool-call-parser` and `--reasoning-parser` name
it; `off` leaves what is written in the text. `auto`, the default, renders a few chats at start: prompts with thinking
switched on, off and neither, with tools, a turn behind a thought and one with a call. It takes the first row whose
signs come out and whose parser reads that call; else the first whose signs come out, or that reads it; else none. A
template that shows no calls is itself looked through for signs. Where none was found for a template that shows tools,
or one that does not read its call, the log says so at start, and `warnings` of `/v1/models`. Names of other engines,
and of models that write the same, stand in the second column. How calls and reasoning reach a client:
[API.md](API.md#chat-tools-and-reasoning).

## Tool calls

{table(head, calls)}
## Reasoning

A row is shown where all its signs come out; a prompt that ends with one of its marks, or marks that are taken from
earlier turns with what is between them, stand for both. `ernie45`, which reasons even where nothing opens a thought,
takes prompts that all open one. A row whose last column is empty is found by name only.

{table(head, thoughts)}"""


def tuning_page() -> str:
    """The page of sizes and knobs: its sentences are its own, two of its tables are made."""
    text = (ROOT / "deploy/TUNING.md").read_text(encoding="utf-8")
    for name, made in (("models", fit_tables.models_table()), ("defaults", fit_tables.defaults_table())):
        head, mark, rest = text.partition(f"<!-- {name} -->\n")
        text = head + mark + table(*made) + rest[rest.index("<!-- end -->") :]
    return text


PAGES = {
    "deploy/OPTIONS.md": options_page,
    "deploy/TUNING.md": tuning_page,
    "frontend/METRICS.md": metrics_page,
    "frontend/PARSERS.md": parsers_page,
}


def main() -> None:
    for path, make in PAGES.items():
        (ROOT / path).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
