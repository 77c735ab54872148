"""The table of tool call formats, one row each. Names are those that vLLM's users know."""

import json
from dataclasses import dataclass
from itertools import chain

from quire.frontend.parsing.shown import CALL, TOOL, Shown
from quire.frontend.parsing.tools.json_objects.apertus import ApertusParser
from quire.frontend.parsing.tools.json_objects.cohere_command3 import CohereCommand3Parser
from quire.frontend.parsing.tools.json_objects.gigachat3 import Gigachat3Parser
from quire.frontend.parsing.tools.json_objects.granite import Granite20bFcParser, GraniteParser
from quire.frontend.parsing.tools.json_objects.hermes import HermesParser
from quire.frontend.parsing.tools.json_objects.hunyuan_a13b import HunyuanA13bParser
from quire.frontend.parsing.tools.json_objects.internlm import InternlmParser
from quire.frontend.parsing.tools.json_objects.llama3_json import Llama3JsonParser
from quire.frontend.parsing.tools.json_objects.longcat import LongcatParser
from quire.frontend.parsing.tools.json_objects.mistral import MistralParser
from quire.frontend.parsing.tools.json_objects.phi4_mini_json import Phi4MiniJsonParser
from quire.frontend.parsing.tools.json_objects.xlam import XlamParser
from quire.frontend.parsing.tools.marked_calls.deepseek import DeepseekV3Parser, DeepseekV31Parser
from quire.frontend.parsing.tools.marked_calls.gemma import FunctionGemmaParser, Gemma4Parser
from quire.frontend.parsing.tools.marked_calls.harmony import HarmonyParser
from quire.frontend.parsing.tools.marked_calls.kimi_k2 import KimiK2Parser
from quire.frontend.parsing.tools.parser import StateParser
from quire.frontend.parsing.tools.pythonic_calls.lfm2 import Lfm2Parser
from quire.frontend.parsing.tools.pythonic_calls.llama4_pythonic import Llama4PythonicParser
from quire.frontend.parsing.tools.pythonic_calls.olmo3 import Olmo3Parser
from quire.frontend.parsing.tools.pythonic_calls.pythonic import PythonicParser
from quire.frontend.parsing.tools.tagged.deepseek_v32 import (
    DeepseekV4Parser,
    DeepseekV32Parser,
    DeepseekV41Parser,
    Gigachat35Parser,
)
from quire.frontend.parsing.tools.tagged.dots import DotsParser
from quire.frontend.parsing.tools.tagged.glm45 import Glm45Parser
from quire.frontend.parsing.tools.tagged.hy_v3 import HyV3OpensourceParser, HyV3Parser
from quire.frontend.parsing.tools.tagged.kimi_k3 import KimiK3Parser
from quire.frontend.parsing.tools.tagged.minicpm5 import MiniCpm5Parser
from quire.frontend.parsing.tools.tagged.minimax_m2 import MinimaxM2Parser
from quire.frontend.parsing.tools.tagged.minimax_m3 import MinimaxM3Parser
from quire.frontend.parsing.tools.tagged.qwen3_coder import Qwen3CoderParser, SeedOssParser
from quire.frontend.parsing.tools.tagged.solar_open2 import SolarOpen2Parser
from quire.frontend.parsing.tools.tagged.step3 import Step3Parser
from quire.frontend.parsing.unknown_format import unknown_format


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A format, its parser, and how a chat template shows it."""

    name: str
    parser: type[StateParser]
    template_signs: tuple[str, ...]
    """Texts that show this format in what a chat template writes."""
    excluding_signs: tuple[str, ...] = ()
    """Texts of which any shows another format instead."""
    aliases: tuple[str, ...] = ()
    """Other names of it: those of other engines, and of models that write the same."""
    models: str = ""
    """Families of models that write so, for the documentation."""
    is_joint: bool = False
    """True where the parser reads the reasoning, too, and is needed without tools as well."""

    def is_shown_in(self, text: str) -> bool:
        """True where a text that a template writes has its signs."""
        shows, excludes = (any(sign in text for sign in signs) for signs in (self.template_signs, self.excluding_signs))
        return shows and not excludes

    def reads(self, turn: str, alone: bool = False) -> bool:
        """True where its parser finds the one call of a template's turn. `alone`: and no text before it."""
        parser = self.parser.of([TOOL])
        parser.checks_arguments = True
        pieces = parser.feed(turn), parser.finish()
        deltas = [delta for piece in pieces for delta in piece.calls]
        try:
            is_whole = json.loads("".join(delta.arguments for delta in deltas)) == json.loads(CALL.arguments)
        except ValueError:
            return False
        behind = "".join(piece.text for piece in pieces).strip()
        return is_whole and deltas[0].name == CALL.name and (not alone or turn.rstrip().endswith(behind))


MARKED_FORMATS = (
    ToolFormat(
        "openai", HarmonyParser, ("<|channel|>",), aliases=("gpt-oss", "gpt_oss"), is_joint=True, models="gpt-oss"
    ),
    ToolFormat(
        "deepseek_v41", DeepseekV41Parser, ("｜DSML｜ calls",), aliases=("deepseekv41",), models="DeepSeek V4.1"
    ),
    ToolFormat("deepseek_v4", DeepseekV4Parser, ("｜DSML｜tool_calls",), aliases=("deepseekv4",), models="DeepSeek V4"),
    ToolFormat("deepseek_v32", DeepseekV32Parser, ("｜DSML｜",), aliases=("deepseekv32",), models="DeepSeek V3.2"),
    ToolFormat(
        "deepseek_v31",
        DeepseekV31Parser,
        ("<｜tool▁sep｜>",),
        excluding_signs=("```json",),
        aliases=("deepseekv31",),
        models="DeepSeek V3.1",
    ),
    ToolFormat(
        "deepseek_v3", DeepseekV3Parser, ("<｜tool▁sep｜>",), aliases=("deepseekv3",), models="DeepSeek V3 and R1"
    ),
    ToolFormat("kimi_k2", KimiK2Parser, ("<|tool_calls_section_begin|>",), models="Kimi K2"),
    ToolFormat("gemma4", Gemma4Parser, ("<|tool_call>",), models="Gemma 4"),
    ToolFormat("functiongemma", FunctionGemmaParser, ("<start_function_call>",), models="FunctionGemma"),
)
TAGGED_FORMATS = (
    ToolFormat("seed_oss", SeedOssParser, ("<seed:tool_call>",), models="Seed-OSS"),
    ToolFormat("minimax_m2", MinimaxM2Parser, ("<minimax:tool_call>",), aliases=("minimax-m2",), models="MiniMax M2"),
    ToolFormat("minimax_m3", MinimaxM3Parser, ("]<]minimax[>[",), aliases=("minimax-m3",), models="MiniMax M3"),
    ToolFormat("kimi_k3", KimiK3Parser, ("<|open|>tools", "<|open|>call"), models="Kimi K3"),
    ToolFormat("dots", DotsParser, ("<dots_function_call>",), models="dots"),
    ToolFormat("gigachat35", Gigachat35Parser, ("｜GCML｜",), models="GigaChat 3.5"),
    ToolFormat("solar_open2", SolarOpen2Parser, ("<|tool_call:start|>",), models="Solar Open 2"),
    ToolFormat("minicpm5", MiniCpm5Parser, ("<function name=",), models="MiniCPM 5"),
    ToolFormat("step3", Step3Parser, ("<steptml:",), models="Step-3"),
    ToolFormat("hy_v3", HyV3Parser, ("<tool_sep>",), models="Hunyuan 3, preview"),
    ToolFormat("hy_v3_opensource", HyV3OpensourceParser, ("<tool_sep:opensource>",), models="Hunyuan 3 and 4"),
    ToolFormat(
        "glm45",
        Glm45Parser,
        ("<arg_key>",),
        aliases=("glm47", "glm", "poolside_v1", "ling3", "spark25"),
        models="GLM-4.5, 4.6, 4.7 and 5; Laguna, Ling 3, Spark 2.5",
    ),
    ToolFormat(
        "qwen3_coder",
        Qwen3CoderParser,
        ("<parameter=",),
        aliases=("qwen3_xml", "step3p5", "nemotron_v3", "mimo"),
        models="Qwen3-Coder, Qwen3.5, Step-3.5, Nemotron 3, MiMo",
    ),
)
PYTHONIC_FORMATS = (
    ToolFormat("lfm2", Lfm2Parser, ("<|tool_call_start|>", "<|tool_list_start|>"), models="LFM2"),
    ToolFormat("olmo3", Olmo3Parser, ("<function_calls>",), models="OLMo 3"),
    ToolFormat(
        "llama4_pythonic",
        Llama4PythonicParser,
        ("<|python_start|>",),
        excluding_signs=('"parameters": dictionary of argument name',),
        models="Llama 4",
    ),
    ToolFormat("pythonic", PythonicParser, ("[func_name1(",), models="Llama 3.2 and others that write Python"),
)
JSON_FORMATS = (
    ToolFormat(
        "hunyuan_a13b",
        HunyuanA13bParser,
        ("<tool_calls>",),
        aliases=("hunyuan", "minimax", "minimax_m1", "jamba"),
        models="Hunyuan A13B, MiniMax M1, Jamba",
    ),
    ToolFormat(
        "longcat",
        LongcatParser,
        ("<longcat_tool_call>",),
        excluding_signs=("<longcat_arg_key>",),
        models="LongCat Flash",
    ),
    ToolFormat(
        "internlm", InternlmParser, ("<|plugin|>",), aliases=("internlm2", "interns1"), models="InternLM 2.5, Intern-S1"
    ),
    ToolFormat("gigachat3", Gigachat3Parser, ("<|function_call|>", "function call<|role_sep|>"), models="GigaChat 3"),
    ToolFormat(
        "cohere_command3",
        CohereCommand3Parser,
        ("<|START_ACTION|>",),
        aliases=("cohere_command4",),
        models="Command A, Command A+, Command R",
    ),
    ToolFormat("apertus", ApertusParser, ("<|tools_prefix|>",), aliases=("apertus2509",), models="Apertus"),
    ToolFormat("phi4_mini_json", Phi4MiniJsonParser, ("<|/tool|>", "functools["), models="Phi-4-mini"),
    ToolFormat("granite", GraniteParser, ("<|tool_call|>",), models="Granite 3"),
    ToolFormat(
        "granite-20b-fc",
        Granite20bFcParser,
        ("<function_call>",),
        aliases=("granite_20b_fc",),
        models="Granite 20B function calling",
    ),
    ToolFormat("xlam", XlamParser, ("make calls in a single JSON array",), models="xLAM"),
    ToolFormat(
        "hermes",
        HermesParser,
        ("<tool_call>",),
        excluding_signs=("<function=", "<arg_key>"),
        aliases=("qwen", "qwen25", "granite4", "ernie45", "trinity"),
        models="Hermes, Qwen2.5, Qwen3, Granite 4, ERNIE 4.5, Trinity",
    ),
    ToolFormat("mistral", MistralParser, ("[TOOL_CALLS]",), models="Mistral, Magistral, Devstral"),
    ToolFormat(
        "llama3_json",
        Llama3JsonParser,
        ("<|python_tag|>", '"parameters": dictionary of argument name'),
        aliases=("llama3", "llama4_json"),
        models="Llama 3.1 to 3.3, Llama 4 with JSON",
    ),
)
TOOL_FORMATS = (*MARKED_FORMATS, *TAGGED_FORMATS, *PYTHONIC_FORMATS, *JSON_FORMATS)
"""The first row that a template shows counts."""


def choose(name: str, shown: Shown | None = None) -> ToolFormat | None:
    """The row with this name; for "auto" the one that a template shows; for "" none. Raises `ValueError`."""
    if not name:
        return None
    if name == "auto":
        return _first_shown(shown) if shown else None
    for row in TOOL_FORMATS:
        if name == row.name or name in row.aliases:
            return row
    known = [known for row in TOOL_FORMATS for known in (row.name, *row.aliases)]
    raise unknown_format("tool_call_parser", name, known)


def _first_shown(shown: Shown) -> ToolFormat | None:
    """The first row that has signs in what a template writes and reads its call, that has signs, or that reads it.

    A template that shows no calls is itself looked through for signs.
    """
    signed = [row for row in TOOL_FORMATS if row.is_shown_in(shown.text)]
    if not shown.calls:
        return next((row for row in TOOL_FORMATS if row in signed or row.is_shown_in(shown.source)), None)
    reading = (row for row in signed if any(map(row.reads, shown.calls)))
    alone = (row for row in TOOL_FORMATS if any(row.reads(turn, alone=True) for turn in shown.calls))
    return next(chain(reading, signed, alone), None)
