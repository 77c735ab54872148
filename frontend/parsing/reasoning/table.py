"""The table of reasoning formats, one row each. Names are those that vLLM's users know."""

from dataclasses import dataclass

from quire.frontend.parsing.reasoning.kept import KeptReasoning
from quire.frontend.parsing.reasoning.parser import ReasoningParser
from quire.frontend.parsing.reasoning.think import ThinkParser
from quire.frontend.parsing.reasoning.wrapped_answer import WrappedAnswerParser
from quire.frontend.parsing.unknown_format import unknown_format


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning between two marks. The fields from `other_marks` on are those of `ThinkParser`."""

    name: str
    start: str
    end: str
    always: bool
    """True where the model reasons even if neither it nor the template writes the opening mark."""
    template_signs: tuple[str, ...]
    """Texts that show this format in a chat template; the first row that matches counts."""
    aliases: tuple[str, ...] = ()
    """Other names of it: those of other engines, and of models that write the same."""
    models: str = ""
    """Families of models that write so, for the documentation."""
    tokens: tuple[str, ...] = ()
    """Special tokens that the parser must see, where they are not the two marks."""
    other_marks: tuple[tuple[str, str], ...] = ()
    after_text: bool = False
    calls: tuple[str, ...] = ()
    """Marks of tool calls that end the reasoning, too, where calls are looked for: some models forget to close it."""
    answer: tuple[str, str] | None = None
    """Marks around the answer, which are not shown."""
    dropped: tuple[str, ...] = ()
    """Marks behind the answer, which are not shown either."""
    switch: str = ""
    """The template argument without which the model does not reason, where the prompt's end does not show it."""
    stays: bool = False
    """True where the reasoning stays in the answer, marks and all."""
    is_joint: bool = False
    """True where the tool parser of this name reads the reasoning: `start` and `end` are what a prompt may end with."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Special tokens that the parser must see, though `skip_special_tokens` hides them."""
        return self.tokens or (self.start, self.end)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All its opening marks, each with the one that closes it."""
        return ((self.start, self.end), *self.other_marks)

    def starts_in_reasoning(self, prompt_end: str, is_switched_off: bool = False) -> bool:
        """True where an output after a prompt that ends so begins in the reasoning.

        `is_switched_off`: the request wants none.
        """
        assumed = self.always and not is_switched_off and not self.closes_reasoning(prompt_end)
        return assumed or prompt_end.rstrip().endswith(self.start)

    def closes_reasoning(self, prompt_end: str) -> bool:
        """True where the prompt itself has closed the reasoning, or has opened the answer."""
        closed = (self.end, *(self.answer or ())[:1])
        return prompt_end.rstrip().endswith(closed)

    def parser(self, starts_in_reasoning: bool, *, may_reason: bool, finds_calls: bool) -> ReasoningParser | None:
        """A parser of one output; None where there is nothing to split. `finds_calls`: its text may hold tool calls."""
        if self.answer is not None:
            return WrappedAnswerParser(
                *(self.start, self.end, starts_in_reasoning),
                answer=self.answer,
                dropped=self.dropped,
                thinks=may_reason,
            )
        if not may_reason:
            return None
        if self.stays:
            return KeptReasoning(self.start) if starts_in_reasoning else None
        return ThinkParser(
            self.start,
            self.end,
            starts_in_reasoning,
            other_marks=self.other_marks,
            ends_before=self.calls if finds_calls else (),
            after_text=self.after_text,
        )


REASONING_FORMATS = (
    ReasoningFormat(
        "openai",
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        False,
        ("<|channel|>",),
        aliases=("openai_gptoss", "gpt_oss", "gpt-oss"),
        is_joint=True,
        models="gpt-oss",
    ),
    ReasoningFormat(
        "gemma4",
        "<|channel>thought",
        "<channel|>",
        False,
        ("<|channel>",),
        tokens=("<|channel>", "<channel|>"),
        after_text=True,
        models="Gemma 4",
    ),
    ReasoningFormat(
        "kimi_k2",
        "<think>",
        "</think>",
        False,
        ("<|tool_calls_section_begin|>",),
        calls=("<|tool_calls_section_begin|>",),
        models="Kimi K2 Thinking",
    ),
    ReasoningFormat(
        "kimi_k3",
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        False,
        ("<|open|>think",),
        tokens=("<|open|>", "<|close|>", "<|sep|>"),
        answer=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
        dropped=("<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        models="Kimi K3",
    ),
    ReasoningFormat("kimi", "◁think▷", "◁/think▷", False, ("◁think▷",), models="Kimi-VL Thinking"),
    ReasoningFormat(
        "cohere_command3",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        False,
        ("<|START_THINKING|>",),
        aliases=("cohere_command4",),
        after_text=True,
        models="Command A Reasoning, Command A+",
    ),
    ReasoningFormat(
        "mistral", "[THINK]", "[/THINK]", False, ("[THINK]",), after_text=True, models="Magistral, Mistral Small 4"
    ),
    ReasoningFormat(
        "seed_oss",
        "<seed:think>",
        "</seed:think>",
        False,
        ("<seed:think>",),
        calls=("<seed:tool_call>",),
        models="Seed-OSS",
    ),
    ReasoningFormat(
        "solar_open2",
        "<|think:start|>",
        "<|think:end|>",
        False,
        ("<|think:start|>",),
        calls=("<|tool_call:start|>",),
        models="Solar Open 2",
    ),
    ReasoningFormat(
        "apertus",
        "<|inner_prefix|>",
        "<|inner_suffix|>",
        False,
        ("<|inner_prefix|>",),
        aliases=("apertus2509",),
        calls=("<|tools_prefix|>",),
        models="Apertus",
    ),
    ReasoningFormat(
        "granite",
        "Here is my thought process:",
        "Here is my response:",
        False,
        ("Here is my thought process:",),
        other_marks=(("Here's my thought process:", "Here's my response:"),),
        switch="thinking",
        models="Granite 3.2 and 3.3",
    ),
    ReasoningFormat(
        "ernie45", "<think>", "</think>", True, (), answer=("<response>", "</response>"), models="ERNIE 4.5 Thinking"
    ),
    ReasoningFormat(
        "hunyuan_a13b",
        "<think>",
        "</think>",
        False,
        (),
        aliases=("hunyuan",),
        answer=("<answer>", "</answer>"),
        models="Hunyuan A13B",
    ),
    ReasoningFormat(
        "minimax_m2_append_think",
        "<think>",
        "</think>",
        False,
        (),
        ("minimax-append-think",),
        stays=True,
        models="MiniMax M2, whose reasoning stays in the answer",
    ),
    ReasoningFormat(
        "minimax_m3",
        "<mm:think>",
        "</mm:think>",
        False,
        ("<mm:think>",),
        aliases=("minimax-m3",),
        calls=("]<]minimax[>[<tool_call>",),
        models="MiniMax M3",
    ),
    ReasoningFormat(
        "minimax_m2",
        "<think>",
        "</think>",
        False,
        ("<minimax:tool_call>",),
        aliases=("minimax", "minimax_m1"),
        calls=("<minimax:tool_call>",),
        models="MiniMax M1 and M2",
    ),
    ReasoningFormat(
        "qwen3",
        "<think>",
        "</think>",
        False,
        ("<think>",),
        aliases=(
            *("qwen3-thinking", "glm45", "glm47", "nemotron_v3", "nemotron_3", "mimo"),
            *("hy_v3", "poolside_v1", "interns1", "holo2", "ling3", "gigachat35"),
            *("deepseek_v3", "deepseek-v3", "deepseek_v31", "deepseek_v32"),
            *("deepseek_v4", "deepseek-v4", "deepseek_v41", "deepseek-v41"),
        ),
        calls=("<tool_call>",),
        models="Qwen3, Qwen3.5, GLM-4.5 to 5, Nemotron 3, MiMo, Hunyuan 3, Ling 3, GigaChat 3.5, DeepSeek V3.1 to V4.1",
    ),
    ReasoningFormat(
        "deepseek_r1",
        "<think>",
        "</think>",
        True,
        ("</think>",),
        aliases=("deepseek-r1", "step3", "step3p5", "olmo3"),
        calls=("<tool_call>",),
        models="DeepSeek R1, QwQ, Step-3, Step-3.5, OLMo 3 Think",
    ),
)


def choose(name: str, template: str) -> ReasoningFormat | None:
    """The row with this name; for "auto" the one that the template's text shows; for "" none. Raises `ValueError`."""
    if not name:
        return None
    if name == "auto":
        shown = (row for row in REASONING_FORMATS if any(sign in template for sign in row.template_signs))
        return next(shown, None)
    for row in REASONING_FORMATS:
        if name == row.name or name in row.aliases:
            return row
    known = [known for row in REASONING_FORMATS for known in (row.name, *row.aliases)]
    raise unknown_format("reasoning_parser", name, known)
