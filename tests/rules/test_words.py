"""Names and docstrings in the words of the field: the glossary is in ARCHITECTURE.md."""

import ast
import re
from collections.abc import Iterator

RETIRED = {
    "archive": "ended", "asks": "query", "condemn": "poison", "disguise": "escape", "drafted": "planned",
    "drew": "sampled", "era": "epoch", "eras": "epochs", "forget": "remove or release", "hear": "receive",
    "heard": "received", "hears": "receives", "intake": "events", "learn": "add or admit", "ledger": "live_requests",
    "lifeline": "parent_death", "obituary": "exit_reason", "rehearsal": "warm_up", "rehearse": "warm_up",
    "said": "sent", "say": "send or emit", "says": "sends", "staging": "upload", "taint": "poison",
    "tainted": "poisoned", "tale": "log", "tales": "logs", "tell": "send or notify", "tells": "sends", "told": "sent",
}  # fmt: skip
"""Words of the private dialect that names once spoke -> what stands there now."""
RIDDLES = {"Of", "What", "Whether", "How", "Who", "Where"}
"""First words of docstrings that do not name the thing."""


def words(name: str) -> list[str]:
    """`step_log`, `StepLog` -> step, log."""
    return [word.lower() for word in re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).split("_") if word]


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, identifier) of everything that is defined or used."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of every string that stands as a statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def test_retired_words_are_gone_from_names(modules) -> None:
    wrong = [
        f"{module.short}:{line} {name}: {word} is {RETIRED[word]}"
        for module in modules.values()
        if not module.is_generated
        for line, name in (*names(module.tree), *((1, part) for part in module.name.split(".")))
        for word in words(name)
        if word in RETIRED
    ]
    assert wrong == []


def test_docstrings_name_the_thing_first(modules) -> None:
    wrong = [
        f"{module.short}:{line} {text[:60]!r}"
        for module in modules.values()
        if not module.is_generated
        for line, text in docstrings(module.tree)
        if text.split() and text.split()[0] in RIDDLES
    ]
    assert wrong == []


def test_the_rule_sees_what_it_forbids() -> None:
    tree = ast.parse('class EraLog:\n    """Of the era."""\n    def told(self, tale): self.x.tell()')
    found = {word for _, name in names(tree) for word in words(name)} & set(RETIRED)
    assert found == {"era", "told", "tale", "tell"}
    assert [text.split()[0] for _, text in docstrings(tree)] == ["Of"]
