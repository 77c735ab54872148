"""The formats that `auto` reads from what real chat templates write, and from no other family's."""

import pytest

from quire.frontend.parsing.formats import AnswerFormats
from quire.frontend.parsing.reasoning.table import REASONING_FORMATS
from quire.frontend.parsing.reasoning.table import choose as choose_reasoning
from quire.frontend.parsing.shown import Shown
from quire.frontend.parsing.tools.table import TOOL_FORMATS
from quire.frontend.parsing.tools.table import choose as choose_tools

CALL_OBJECT = '{"name": <function-name>, "arguments": <args-json-object>}'
LLAMA = '{"name": function name, "parameters": dictionary of argument name and its value}'
EXCERPTS = {
    "Qwen2.5": (f"within <tool_call></tool_call> XML tags:\n<tool_call>\n{CALL_OBJECT}\n</tool_call>", "hermes", None),
    "Qwen3": (f"<tool_call>\n{CALL_OBJECT}\n</tool_call> {{{{- '<think>\\n\\n</think>' }}}}", "hermes", "qwen3"),
    "Qwen3-Coder": ("<tool_call>\n<function=example>\n<parameter=p>\nvalue\n</parameter>", "qwen3_coder", None),
    "Llama 3.1": (f"{LLAMA} {{{{- '<|python_tag|>' }}}}", "llama3_json", None),
    "Llama 4": (f"{LLAMA} {{{{ '<|python_start|>' }}}} {{{{ '<|python_end|>' }}}}", "llama3_json", None),
    "Llama 4 pythonic": ("'<|python_start|>' [func_name1(params_name1=params_value1)]", "llama4_pythonic", None),
    "Llama 3.2 pythonic": ("in the format [func_name1(params_name1=params_value1)]", "pythonic", None),
    "Mistral": ("{{- '[TOOL_CALLS]' }}", "mistral", None),
    "Magistral": ("[THINK]Your thoughts[/THINK] {{- '[TOOL_CALLS]' + name + '[ARGS]' }}", "mistral", "mistral"),
    "DeepSeek R1": (
        "'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + name + '\\n' + '```json' + '\\n' "
        "{% set content = content.split('</think>')[-1] %} '<｜Assistant｜><think>\\n'",
        "deepseek_v3",
        "qwen3",
    ),
    "DeepSeek V3.1": (
        "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments + '<｜tool▁call▁end｜>' "
        "{%- if not thinking %}{{'</think>'}}{%- else %}{{'<think>'}}",
        "deepseek_v31",
        "qwen3",
    ),
    "DeepSeek V3.2": (
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\"> '<think>' '</think>'",
        "deepseek_v32",
        "qwen3",
    ),
    "DeepSeek V4.1": ('<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">', "deepseek_v41", None),
    "GigaChat 3.5": ("<｜GCML｜tool_calls>\n<｜GCML｜invoke name=... '<think>' '</think>'", "gigachat35", "qwen3"),
    "dots": ('<dots_function_call>\n<invoke name="f">', "dots", None),
    "Solar Open 2": ("<|tool_call:start|>{{ name }}\n '<|think:start|><|think:end|>'", "solar_open2", "solar_open2"),
    "MiniCPM 5": ('<function name="f"><param name="k">v</param></function> <think></think>', "minicpm5", "qwen3"),
    "Apertus": (
        "<|tools_prefix|>[{{ calls }}]<|tools_suffix|> '<|inner_prefix|>' '<|inner_suffix|>'",
        "apertus",
        "apertus",
    ),
    "DeepSeek V4": ('<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">', "deepseek_v4", None),
    "Kimi K2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|> '<think></think>'",
        "kimi_k2",
        "kimi_k2",
    ),
    "Kimi K3": (
        "'<|open|>tools<|sep|>' '<|open|>call tool=<|open|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|>'",
        "kimi_k3",
        "kimi_k3",
    ),
    "Gemma 4": ("{{- '<|tool_call>call:' + name + '{' -}} '<|channel>thought\\n<channel|>'", "gemma4", "gemma4"),
    "FunctionGemma": ("'<start_function_call>call:' + name + '{' + '<escape>'", "functiongemma", None),
    "gpt-oss": (
        '"<|start|>assistant<|channel|>analysis<|message|>" " to=functions." + name + "<|channel|>commentary json"',
        "openai",
        "openai",
    ),
    "GLM 4.5": ("<tool_call>{function-name}\n<arg_key>{k}</arg_key>\n<arg_value> '<think></think>'", "glm45", "qwen3"),
    "Granite 3": (
        "respond only with <|tool_call|> followed by a JSON list. Write your thoughts after "
        "'Here is my thought process:' and your response after 'Here is my response:'",
        "granite",
        "granite",
    ),
    "Granite 3.3": (
        "with <|tool_call|> followed by a JSON list. Write your thoughts between <think></think> and your response "
        "between <response></response>",
        "granite",
        "granite33",
    ),
    "Granite 4": (f"<tools></tools> XML tags\n<tool_call>\n{CALL_OBJECT}\n</tool_call>", "hermes", None),
    "Granite 20B FC": ("'<function_call> ' + call", "granite-20b-fc", None),
    "Phi-4 mini": ("'<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>'", "phi4_mini_json", None),
    "Phi-4 mini with functools": ("functools[{name: f, arguments: {}}]", "phi4_mini_json", None),
    "xLAM 2": ("make calls in a single JSON array: [{}] '<|python_tag|>'", "xlam", None),
    "OLMo 3": ("'<function_calls>' + calls + '</function_calls>' {{ '<think>' }} '</think>'", "olmo3", "qwen3"),
    "InternLM": ("'<|action_start|><|plugin|>\\n' + call + '<|action_end|>'", "internlm", None),
    "Jamba": ("<tool_calls>[\\n", "hunyuan_a13b", None),
    "LongCat Flash": (f"<longcat_tool_call>\n{CALL_OBJECT}\n</longcat_tool_call>", "longcat", None),
    "LongCat with keys": ("<longcat_tool_call>{name}\n<longcat_arg_key>{key}</longcat_arg_key>", None, None),
    "GigaChat 3": ("'function call<|role_sep|>\\n' + call + '<|message_sep|>'", "gigachat3", None),
    "LFM 2": ("'List of tools: <|tool_list_start|>[' + tools + ']<|tool_list_end|>'", "lfm2", None),
    "Command A": (
        "<|START_THINKING|>{{ plan }}<|END_THINKING|><|START_ACTION|>[\\n",
        "cohere_command3",
        "cohere_command3",
    ),
    "Hunyuan 3": (
        "<tool_calls:opensource><tool_call:opensource>f<tool_sep:opensource> '<think:opensource></think:opensource>'",
        "hy_v3_opensource",
        "hy_v3_opensource",
    ),
    "MiniMax M3": (
        "{%- set ns = ']<]minimax[>[' %} ns ~ '<tool_call>' '<mm:think></mm:think>'",
        "minimax_m3",
        "minimax_m3",
    ),
    "MiniMax M2": ("<minimax:tool_call>\n<invoke name=\"tool-name-1\"> '<think></think>'", "minimax_m2", "minimax_m2"),
    "Seed-OSS": ("<seed:tool_call>\n<function=example_function_name>\n<parameter=p>", "seed_oss", None),
    "plain": ("{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}", None, None),
}


@pytest.mark.parametrize("family", EXCERPTS)
def test_a_template_shows_its_own_format_and_no_other(family):
    template, tools, reasoning = EXCERPTS[family]
    formats = AnswerFormats.choose("auto", "auto", Shown(source=template))
    assert formats.tools == (choose_tools(tools) if tools else None)
    assert (formats.reasoning.name if formats.reasoning else None) == reasoning


def test_every_name_is_of_one_row_only():
    for rows, choose in ((TOOL_FORMATS, choose_tools), (REASONING_FORMATS, choose_reasoning)):
        names = [name for row in rows for name in (row.name, *row.aliases)]
        assert len(names) == len(set(names))
        assert all(name in (choose(name).name, *choose(name).aliases) for name in names)


def test_every_row_names_its_models_for_the_page_made_from_it():
    assert [row.name for row in (*TOOL_FORMATS, *REASONING_FORMATS) if not row.models] == []


def test_every_tool_format_is_shown_by_some_template():
    assert {row.name for row in TOOL_FORMATS} - {tools for _, tools, _ in EXCERPTS.values()} <= {"step3", "hy_v3"}
