"""Chats as families of models write them: a template each, written anew, and a turn that calls a tool."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Family:
    """A template in the format of a family's own, and what an answer of such a model is made of."""

    architecture: str
    template: str
    tools: str
    """Name of the row of `TOOL_FORMATS` that reads its calls."""
    reasoning: str | None
    specials: tuple[str, ...]
    """Special tokens of its tokenizer; the first one ends a turn."""
    thought: str = "Let me see."
    content: str = "I ask."
    settings: dict[str, str] = field(default_factory=dict)
    """Of the frontend; without any, both parsers are found by the template."""
    has_history: bool = True
    """The template shows the calls of earlier turns."""


LOOP = "{% for m in messages %}"
END = "{% endfor %}{% if add_generation_prompt %}"
CALLS = "{% for c in m.tool_calls or [] %}{% set f = c.function %}"
ARGUMENTS = "{% for k, v in f.arguments.items() %}"
VALUE = "{{ v if v is string else v | tojson }}"
HERMES_CALL = '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>'


def python_arguments(assign: str = "=") -> str:
    return f"{ARGUMENTS}{{{{ k }}}}{assign}{{{{ v | tojson }}}}{{% if not loop.last %}}, {{% endif %}}{{% endfor %}}"


CHATML = (
    "{% if tools %}<|im_start|>system\n<tools>{{ tools | tojson }}</tools>\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n{% endif %}'
)
GLM = Family(
    "Glm4MoeForCausalLM",
    "[gMASK]<sop>{% if tools %}<|system|>\n{{ tools | tojson }}\n<tool_call>{function-name}\n"
    "<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n</tool_call>{% endif %}"
    + LOOP
    + "{% if m.role == 'user' %}<|user|>\n{{ m.content }}"
    "{% elif m.role == 'assistant' %}<|assistant|>\n<think>{{ (m.reasoning_content or '') | trim }}</think>"
    "{% if m.content | trim %}\n{{ m.content | trim }}{% endif %}"
    + CALLS
    + "\n<tool_call>{{ f.name }}\n"
    + ARGUMENTS
    + "<arg_key>{{ k }}</arg_key>\n<arg_value>"
    + VALUE
    + "</arg_value>\n{% endfor %}</tool_call>{% endfor %}"
    "{% else %}<|observation|>\n<tool_response>\n{{ m.content }}\n</tool_response>{% endif %}"
    + END
    + "<|assistant|>{% endif %}",
    "glm45",
    "qwen3",
    ("<|user|>", "<|assistant|>", "<|observation|>", "<|system|>", "[gMASK]", "<sop>"),
)
MINIMAX = Family(
    "MiniMaxM2ForCausalLM",
    ']~!b[{% if tools %}]~b]system\n{{ tools | tojson }}\n<minimax:tool_call>\n<invoke name="tool-name-1">\n'
    "</invoke>\n</minimax:tool_call>[e~[\n{% endif %}"
    + LOOP
    + "{% if m.role == 'assistant' %}]~b]ai\n<think>\n{{ m.reasoning_content }}\n</think>\n\n{{ m.content }}"
    "{% if m.tool_calls %}\n<minimax:tool_call>\n"
    + CALLS
    + '<invoke name="{{ f.name }}">\n'
    + ARGUMENTS
    + '<parameter name="{{ k }}">'
    + VALUE
    + "</parameter>\n{% endfor %}</invoke>\n{% endfor %}</minimax:tool_call>{% endif %}[e~[\n"
    "{% else %}]~b]{{ m.role }}\n{{ m.content }}[e~[\n{% endif %}" + END + "]~b]ai\n<think>\n{% endif %}",
    "minimax_m2",
    "minimax_m2",
    ("[e~[", "]~b]", "]~!b["),
)
ERNIE = Family(
    "Ernie4_5_MoeForCausalLM",
    CHATML
    + LOOP
    + "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
    "{% if m.content %}<response>\n{{ m.content }}\n</response>\n{% endif %}"
    + CALLS
    + "\n"
    + HERMES_CALL
    + "\n{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    + END
    + "<|im_start|>assistant\n<think>\n{% endif %}",
    "hermes",
    "ernie45",
    ("<|im_end|>", "<|im_start|>"),
    content="",
)
GPT_OSS = Family(
    "GptOssForCausalLM",
    "<|start|>developer<|message|>{% if tools %}namespace functions {{ tools | tojson }}{% endif %}<|end|>"
    + LOOP
    + "{% if m.role == 'assistant' %}{% if m.tool_calls %}"
    "{% if m.content and m.thinking %}{{ raise_exception('Cannot pass both content and thinking') }}{% endif %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|>"
    "{% set f = m.tool_calls[0].function %}<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json"
    "<|message|>{{ f.arguments | tojson }}<|call|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% elif m.role == 'tool' %}<|start|>functions.look to=assistant<|channel|>commentary<|message|>"
    "{{ m.content | tojson }}<|end|>{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}"
    + END
    + "<|start|>assistant{% endif %}",
    "openai",
    "openai",
    ("<|call|>", "<|return|>", "<|end|>", "<|start|>", "<|message|>", "<|channel|>", "<|constrain|>"),
    content="",
)
LLAMA_4 = Family(
    "Llama4ForCausalLM",
    "{% if tools %}<|header_start|>system<|header_end|>\n\n{{ tools | tojson }}<|python_start|>"
    "[func_name1(params_name1=params_value1)]<|python_end|><|eot|>{% endif %}"
    + LOOP
    + "<|header_start|>{{ m.role }}<|header_end|>\n\n{{ m.content }}{% if m.tool_calls %}<|python_start|>["
    + CALLS
    + "{{ f.name }}("
    + python_arguments()
    + "){% if not loop.last %}, {% endif %}{% endfor %}]<|python_end|>{% endif %}<|eot|>"
    + END
    + "<|header_start|>assistant<|header_end|>\n\n{% endif %}",
    "llama4_pythonic",
    None,
    ("<|eot|>", "<|header_start|>", "<|header_end|>", "<|python_start|>", "<|python_end|>"),
    thought="",
    content="",
)
GEMMA_VALUE = (
    '{% macro value(v) %}{% if v is string %}<|"|>{{ v }}<|"|>{% elif v is iterable %}'
    "[{% for one in v %}{{ value(one) }}{% if not loop.last %},{% endif %}{% endfor %}]"
    "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
)
GEMMA_4 = Family(
    "Gemma4ForCausalLM",
    GEMMA_VALUE
    + "{% if tools %}<|turn>system\n{{ tools | tojson }}<turn|>\n{% endif %}"
    + LOOP
    + "{% if m.role == 'assistant' %}<|turn>model\n"
    "{% if m.reasoning %}<|channel>thought\n{{ m.reasoning }}\n<channel|>{% endif %}{{ m.content }}"
    + CALLS
    + "<|tool_call>call:{{ f.name }}{{ '{' }}"
    + ARGUMENTS
    + "{{ k }}:{{ value(v) }}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}<tool_call|>{% endfor %}<turn|>\n"
    "{% else %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endif %}" + END + "<|turn>model\n{% endif %}",
    "gemma4",
    "gemma4",
    ("<turn|>", "<|turn>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
)
DOTS = Family(
    "Dots1ForCausalLM",
    '{% if tools %}<|system|>{{ tools | tojson }}\n<dots_function_call>\n<invoke name="f">\n</invoke>\n'
    "</dots_function_call><|endofsystem|>{% endif %}"
    + LOOP
    + "{% if m.role == 'assistant' %}<|response|>{{ m.content }}{% if m.tool_calls %}<dots_function_call>\n"
    + CALLS
    + '<invoke name="{{ f.name }}">\n'
    + ARGUMENTS
    + '<parameter name="{{ k }}">\n'
    + VALUE
    + "\n</parameter>\n{% endfor %}</invoke>\n{% endfor %}</dots_function_call>{% endif %}<|endofresponse|>"
    "{% else %}<|userprompt|>{{ m.content }}<|endofuserprompt|>{% endif %}" + END + "<|response|>{% endif %}",
    "dots",
    None,
    ("<|endofresponse|>", "<|response|>", "<|userprompt|>", "<|endofuserprompt|>", "<|system|>", "<|endofsystem|>"),
    thought="",
)
OLMO_3 = Family(
    "Olmo3ForCausalLM",
    "<|im_start|>system\n{% if tools %}<functions>{{ tools | tojson }}</functions>{% endif %}<|im_end|>\n"
    + LOOP
    + "<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}<function_calls>"
    + CALLS
    + "{{ f.name }}("
    + python_arguments()
    + "){% if not loop.last %}\n{% endif %}{% endfor %}</function_calls>{% endif %}<|im_end|>\n"
    + END
    + "<|im_start|>assistant\n{% endif %}",
    "olmo3",
    None,
    ("<|im_end|>", "<|im_start|>"),
    thought="",
)
EXAONE_4 = Family(
    "Exaone4ForCausalLM",
    '{% if tools %}[|system|]\n# Available Tools\n{{ tools | tojson }}\n<tool_call>{"name": function_1, '
    '"arguments": {}}</tool_call>[|endofturn|]\n{% endif %}'
    + LOOP
    + "[|{{ m.role }}|]\n{% if m.role == 'assistant' %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}"
    + CALLS
    + '\n<tool_call>{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}</tool_call>{% endfor %}'
    "[|endofturn|]\n" + END + "[|assistant|]\n<think>\n{% endif %}",
    "hermes",
    "qwen3",
    ("[|endofturn|]", "[|assistant|]", "[|user|]", "[|system|]", "[|tool|]"),
)
SMOLLM_3 = Family(
    "SmolLM3ForCausalLM",
    CHATML
    + LOOP
    + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    + END
    + "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n"
    "{% endif %}{% endif %}",
    "hermes",
    "qwen3",
    ("<|im_end|>", "<|im_start|>"),
    has_history=False,
)
SEED_OSS = Family(
    "SeedOssForCausalLM",
    "{% if tools %}<seed:bos>system\n{{ tools | tojson }}\n<seed:tool_call>\n<function=example_function_name>\n"
    "<parameter=example_parameter_1>value_1</parameter>\n</function>\n</seed:tool_call><seed:eos>{% endif %}"
    + LOOP
    + "<seed:bos>{{ m.role }}\n{% if m.role == 'assistant' %}<seed:think>{{ m.reasoning_content }}</seed:think>\n"
    "{{ m.content }}{% if m.tool_calls %}\n<seed:tool_call>\n"
    + CALLS
    + "<function={{ f.name }}>\n"
    + ARGUMENTS
    + "<parameter={{ k }}>"
    + VALUE
    + "</parameter>\n{% endfor %}</function>\n{% endfor %}</seed:tool_call>{% endif %}"
    "{% else %}{{ m.content }}{% endif %}<seed:eos>" + END + "<seed:bos>assistant\n{% endif %}",
    "seed_oss",
    "seed_oss",
    ("<seed:eos>", "<seed:bos>", "<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"),
)
COHERE_2 = Family(
    "Cohere2ForCausalLM",
    "{% if tools %}<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{{ tools | tojson }}<|END_OF_TURN_TOKEN|>{% endif %}"
    + LOOP
    + "<|START_OF_TURN_TOKEN|>{% if m.role == 'assistant' %}<|CHATBOT_TOKEN|>{% if m.tool_calls %}"
    "<|START_THINKING|>{{ m.tool_plan }}<|END_THINKING|><|START_ACTION|>[\n"
    + CALLS
    + '    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", "parameters": '
    "{{ f.arguments | tojson }}}{% if not loop.last %},{% endif %}\n{% endfor %}]<|END_ACTION|>"
    "{% else %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% endif %}"
    "{% else %}<|USER_TOKEN|>{{ m.content }}{% endif %}<|END_OF_TURN_TOKEN|>"
    + END
    + "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
    "cohere_command3",
    "cohere_command3",
    (
        *("<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"),
        *("<|USER_TOKEN|>", "<|SYSTEM_TOKEN|>"),
        *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>"),
        *("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    content="",
)
FAMILIES = {
    "GLM-4.5": GLM,
    "MiniMax-M2": MINIMAX,
    "ERNIE 4.5 Thinking": ERNIE,
    "gpt-oss": GPT_OSS,
    "Llama 4": LLAMA_4,
    "Gemma 4": GEMMA_4,
    "dots.llm1": DOTS,
    "OLMo 3": OLMO_3,
    "EXAONE 4": EXAONE_4,
    "SmolLM3": SMOLLM_3,
    "Seed-OSS": SEED_OSS,
    "Command R7B": COHERE_2,
}
