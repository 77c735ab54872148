"""Which parser of reasoning a model gets: one row each. Names are those vLLM's users know."""

from dataclasses import dataclass

from quire.frontend.parsing.reasoning.think import ThinkParser


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    start: str
    end: str
    always: bool
    """The model thinks even if neither it nor the template writes the opening mark."""
    signs: tuple[str, ...]
    """A chat template with one of them is of this kind; the first row that matches counts."""

    def starts_inside(self, prompt_end: str) -> bool:
        """Whether an output after a prompt that ends so begins in the reasoning."""
        tail = prompt_end.rstrip()
        return tail.endswith(self.start) or (self.always and not tail.endswith(self.end))

    def is_over(self, prompt_end: str) -> bool:
        """Whether the prompt itself has closed the reasoning."""
        return prompt_end.rstrip().endswith(self.end)

    def parser(self, inside: bool) -> ThinkParser:
        return ThinkParser(self.start, self.end, inside)


ROWS = (
    Row("mistral", "[THINK]", "[/THINK]", False, ("[THINK]",)),
    Row("qwen3", "<think>", "</think>", False, ("<think>",)),
    Row("deepseek_r1", "<think>", "</think>", True, ("</think>",)),
)


def choose(name: str, template: str) -> Row | None:
    """The row of a name; of "auto" the one the template's text shows; of "" none. Raises `ValueError`."""
    if not name:
        return None
    for row in ROWS:
        if row.name == name or (name == "auto" and any(sign in template for sign in row.signs)):
            return row
    if name == "auto":
        return None
    known = ", ".join(row.name for row in ROWS)
    raise ValueError(f"reasoning_parser: {name!r} is not one of auto, {known}; leave it empty for none")
