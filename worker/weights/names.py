"""The map from a checkpoint's tensor names to the parts of parameters they fill: anchored patterns, held as data."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, NamedTuple

from quire.worker.weights.layout import Layout, StackedLayout, of_inputs, side_by_side

WEIGHT: Final = ".weight"
INDEX: Final = "index"
"""The group of each input of a layer, which outputs have in common however they are merged or ordered."""
TENSOR: Final = "{tensor}"
EMBEDDING: Final = f"embedding.{TENSOR}"
HEAD: Final = f"head.{TENSOR}"
"""Targets of the vocabulary's tensors."""
RULE: Final = "rule_"
GROUP: Final = re.compile(r"\(\?P<\w+>")
NOTHING: Final = r"(?!)"


class Targets(NamedTuple):
    """The parts that one tensor fills."""

    paths: tuple[str, ...]
    """Path of each in the model: its module's, its own name if several are merged, then the parameter's name."""
    layout: Layout


@dataclass(frozen=True, slots=True)
class NameRule:
    """`pattern` must match the whole name; its named groups go into `target`, the path of a part in the model."""

    pattern: str
    target: str
    parts: tuple[str, ...] = ("",)
    """Parts that one tensor fills: `target` has a {part} for each, and `layout` knows where they lie."""
    layout: Layout = side_by_side
    of_experts: StackedLayout | None = None
    """The tensor has these parts of every expert, laid out so, and each is named after its number: "3.down"."""

    def apply(self, name: str) -> Targets | None:
        match = re.fullmatch(self.pattern, name)
        if match is None:
            return None
        named = match.groupdict()
        paths = (self.target.format(**{"part": part, **named}) for part in self.parts)
        return Targets(tuple(paths), of_inputs if named.get("tensor") == INDEX else self.layout)


@dataclass(frozen=True)
class NameMap:
    rules: tuple[NameRule, ...]
    ignored: tuple[str, ...] = ()
    """Patterns of tensors a checkpoint may hold that no parameter needs; they win over the rules."""
    linear: tuple[str, ...] = ()
    """Names of the linear layers, with {n} for the number of a block and {e} for that of an expert: quantizations call
    them so."""
    tied: tuple[str, ...] = ()
    """Patterns of an output head that is the embedding: a checkpoint may hold it a second time."""

    def laid_out(self, target: str, layout: Layout) -> "NameMap":
        """The same map, but for the layout of tensors that fill one part of `target`."""
        rules = (
            replace(rule, layout=layout) if rule.target == target and len(rule.parts) == 1 else rule
            for rule in self.rules
        )
        return replace(self, rules=tuple(rules))

    def of_experts(self, count: int) -> "NameMap":
        """The same map, its tensors of all experts those of so many, and its linear layers, too; 0: there are none."""

        def expanded(rule: NameRule) -> NameRule:
            if rule.of_experts is None:
                return rule
            parts = tuple(f"{number}.{part}" for number in range(count) for part in rule.parts)
            return replace(rule, parts=parts, layout=partial(rule.of_experts, each=len(rule.parts)), of_experts=None)

        numbers = [str(number) for number in range(count)]
        linear = (name.replace("{e}", e) for name in self.linear for e in (numbers if "{e}" in name else [""]))
        rules = (expanded(rule) for rule in self.rules if count or rule.of_experts is None)
        return replace(self, rules=tuple(rules), linear=tuple(linear))

    def with_rows(self, path: str, layout: Layout, *, is_tied: bool) -> "NameMap":
        """The same map, but for rows of the output head: `layout` says which fill a module of the model.

        A tied head is the embedding, which the tensor fills, too.
        """
        rules = []
        for rule in self.rules:
            if is_tied and rule.target == EMBEDDING:
                rule = replace(
                    rule, target=f"{{part}}.{TENSOR}", parts=(EMBEDDING.partition(".")[0], path), layout=layout
                )
            elif not is_tied and rule.target == HEAD:
                rule = replace(rule, target=f"{path}.{TENSOR}", layout=layout)
            rules.append(rule)
        return replace(self, rules=tuple(rules))

    def ignoring(self, *patterns: str) -> "NameMap":
        """The same map, with more names ignored."""
        return replace(self, ignored=(*self.ignored, *patterns))

    def tying(self, *patterns: str) -> "NameMap":
        """The same map of a model whose head is the embedding, by the patterns of the head's names."""
        return replace(self, tied=patterns)

    def ignores(self, name: str) -> bool:
        return self._any_ignored.fullmatch(name) is not None

    def targets(self, name: str) -> Targets | None:
        """The parts that a tensor fills; None when no rule knows its name."""
        match = self._any_rule.fullmatch(name)
        if match is None or match.lastgroup is None:
            return None
        return self.rules[int(match.lastgroup.removeprefix(RULE))].apply(name)

    @cached_property
    def _any_ignored(self) -> re.Pattern[str]:
        unnamed = (GROUP.sub("(?:", one) for one in self.ignored)  # two may name a group alike
        return re.compile("|".join(unnamed) or NOTHING)

    @cached_property
    def _any_rule(self) -> re.Pattern[str]:
        """The rules in one pattern, whose group says which one it is: a checkpoint may have 300 000 names."""
        unnamed = (GROUP.sub("(?:", rule.pattern) for rule in self.rules)
        return re.compile("|".join(f"(?P<{RULE}{number}>{one})" for number, one in enumerate(unnamed)) or NOTHING)

    def linear_layers(self, num_blocks: int) -> dict[str, tuple[str, ...]]:
        """Every linear layer by the name that a checkpoint usually has for it -> its paths in the model."""
        names = dict.fromkeys(
            name.format(n=n) for name in self.linear for n in range(num_blocks if "{n}" in name else 1)
        )
        return self.layers(names)

    def layers(self, modules: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Those of these modules of the checkpoint that the model has -> their paths in it."""
        found = {}
        for module in modules:
            weight = f"{module}{WEIGHT}"
            if not self.ignores(weight) and (targets := self.targets(weight)) is not None:
                found[module] = tuple(path.removesuffix(WEIGHT) for path in targets.paths)
        return found
