"""A fault: an exact text of one product file, and the text that stands there instead."""

import dataclasses
import difflib
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Fault:
    """One bug to plant. `old` is made of whole lines when it was drawn, and of any text when chosen by hand."""

    id: str
    """`d017` of the drawn ones, `h05` of those by hand."""
    file: str
    old: str
    new: str
    what: str
    """One sentence in a reader's words, or the kind of a drawn fault."""
    commit: str = ""
    """The commit that mended such a bug, or wrote the text that is right; of a drawn one empty."""
    line: int = 1
    """Where `old` began when it was drawn: of several equal places, the nearest counts."""

    @property
    def room(self) -> str:
        return self.file.partition("/")[0]

    @property
    def is_compiled(self) -> bool:
        return self.file.endswith((".cpp", ".hpp"))

    def planted_in(self, text: str) -> str:
        """`text` with the fault; LookupError where the place is gone."""
        starts = [index for index in range(len(text)) if text.startswith(self.old, index)] if self.old else []
        if not starts:
            raise LookupError(f"{self.id}: {self.file} has no {self.old!r} any more")
        start = min(starts, key=lambda index: abs(text.count("\n", 0, index) + 1 - self.line))
        return text[:start] + self.new + text[start + len(self.old) :]

    def diff(self, root: Path) -> str:
        before = (root / self.file).read_text()
        lines = difflib.unified_diff(
            before.splitlines(), self.planted_in(before).splitlines(), self.file, self.file, lineterm="", n=2
        )
        return "\n".join(lines)
