"""The table of reasoning formats, one row each. Names are those that vLLM's users know."""

from dataclasses import dataclass

from quire.frontend.parsing.reasoning.kept import KeptReasoning
from quire.frontend.parsing.reasoning.parser import ReasoningParser
from quire.frontend.parsing.reasoning.think import ThinkParser
from quire.frontend.parsing.reasoning.wrapped_answer import WrappedAnswerParser
from quire.frontend.parsing.shown import Shown
from quire.frontend.parsing.unknown_format import unknown_format


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning between two marks. The fields from `other_marks` on are those of `ThinkParser`."""

    name: str
    start: str
    end: str
    always: bool
    """True where the model reasons even if neither it nor the template writes the opening mark."""
    template_signs: tuple[str, ...] = ()
    """Texts that show this format, and no other with its marks, in what a chat template writes."""
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
    by_name: bool = False
    """True where no template tells it from another format."""
    is_joint: bool = False
    """True where the tool parser of this name reads the reasoning: `start` and `end` are what a prompt may end with."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Special tokens that the parser must see, though `skip_special_tokens` hides them."""
        return self.tokens or (self.start, self.end)

    @property
    def signs(self) -> tuple[str, ...]:
        """Texts that a template has to write, all of them; what opens or closes a prompt stands for both marks."""
        return () if self.by_name else (self.start, self.end, *(self.answer or ())[:1], *self.template_signs)

    def is_shown(self, shown: Shown, text: str) -> bool:
        """True where a template shows it, by `text`, what it writes or what is written in it.

        One that reasons always is shown only by prompts that all open the reasoning.
        """
        answers = self.answer is None or self.answer[0] in text
        if self.by_name or not answers or not all(sign in shown.text + shown.source for sign in self.template_signs):
            return False
        tails = [prompt.rstrip() for prompt in shown.prompts if prompt]
        if self.always:
            return bool(tails) and all(tail.endswith(self.start) for tail in tails)
        ends = any(tail.endswith((self.start, self.end)) for tail in tails)
        return ends or (self.start in text and self.end in text) or (self.start, self.end) in shown.stripped

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
        aliases=("openai_gptoss", "gpt_oss", "gpt-oss"),
        is_joint=True,
        models="gpt-oss",
    ),
    ReasoningFormat(
        "gemma4",
        "<|channel>thought",
        "<channel|>",
        False,
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
        tokens=("<|open|>", "<|close|>", "<|sep|>"),
        answer=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
        dropped=("<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        models="Kimi K3",
    ),
    ReasoningFormat("kimi", "◁think▷", "◁/think▷", False, models="Kimi-VL Thinking"),
    ReasoningFormat(
        "cohere_command3",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        False,
        aliases=("cohere_command4",),
        after_text=True,
        models="Command A Reasoning, Command A+",
    ),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]", False, after_text=True, models="Magistral, Mistral Small 4"),
    ReasoningFormat(
        "seed_oss",
        "<seed:think>",
        "</seed:think>",
        False,
        calls=("<seed:tool_call>",),
        models="Seed-OSS",
    ),
    ReasoningFormat(
        "solar_open2",
        "<|think:start|>",
        "<|think:end|>",
        False,
        calls=("<|tool_call:start|>",),
        models="Solar Open 2",
    ),
    ReasoningFormat(
        "hy_v3_opensource",
        "<think:opensource>",
        "</think:opensource>",
        False,
        calls=("<tool_calls:opensource>",),
        models="Hunyuan 3 and 4",
    ),
    ReasoningFormat(
        "apertus",
        "<|inner_prefix|>",
        "<|inner_suffix|>",
        False,
        aliases=("apertus2509",),
        calls=("<|tools_prefix|>",),
        models="Apertus",
    ),
    ReasoningFormat(
        "granite",
        "Here is my thought process:",
        "Here is my response:",
        False,
        other_marks=(("Here's my thought process:", "Here's my response:"),),
        switch="thinking",
        models="Granite 3.2",
    ),
    ReasoningFormat(
        "ernie45", "<think>", "</think>", True, answer=("<response>", "</response>"), models="ERNIE 4.5 Thinking"
    ),
    ReasoningFormat(
        "granite33",
        "<think>",
        "</think>",
        False,
        answer=("<response>", "</response>"),
        switch="thinking",
        models="Granite 3.3",
    ),
    ReasoningFormat(
        "hunyuan_a13b",
        "<think>",
        "</think>",
        False,
        aliases=("hunyuan",),
        answer=("<answer>", "</answer>"),
        models="Hunyuan A13B",
    ),
    ReasoningFormat(
        "minimax_m2_append_think",
        "<think>",
        "</think>",
        False,
        aliases=("minimax-append-think",),
        stays=True,
        by_name=True,
        models="MiniMax M2, whose reasoning stays in the answer",
    ),
    ReasoningFormat(
        "minimax_m3",
        "<mm:think>",
        "</mm:think>",
        False,
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
        by_name=True,
        aliases=("deepseek-r1", "step3", "step3p5", "olmo3"),
        calls=("<tool_call>",),
        models="DeepSeek R1, QwQ, Step-3, Step-3.5, OLMo 3 Think",
    ),
)


MARKS = tuple(dict.fromkeys((row.start, row.end) for row in REASONING_FORMATS if not row.is_joint))
"""The marks of all formats."""


def choose(name: str, shown: Shown | None = None) -> ReasoningFormat | None:
    """The row with this name; for "auto" the one that a template shows; for "" none. Raises `ValueError`."""
    if not name:
        return None
    if name == "auto":
        return _first_shown(shown) if shown else None
    for row in REASONING_FORMATS:
        if name == row.name or name in row.aliases:
            return row
    known = [known for row in REASONING_FORMATS for known in (row.name, *row.aliases)]
    raise unknown_format("reasoning_parser", name, known)


def _first_shown(shown: Shown) -> ReasoningFormat | None:
    """The first row that a template writes; else the first in its source: no chat of ours may have such thoughts."""
    texts = shown.text, shown.source
    return next((row for text in texts for row in REASONING_FORMATS if row.is_shown(shown, text)), None)
