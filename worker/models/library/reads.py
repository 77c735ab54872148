"""A forward pass of the library's modules, written down: which tensors each module reads and makes, and by what steps.

Tensors are told apart as objects, so nothing is guessed of a module by its name or its numbers.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

ATTENTION: Final = "attention"
Attention = Callable[..., tuple[torch.Tensor, None]]
"""Function that stands for it, as the library calls it."""


@dataclass(frozen=True, slots=True)
class Step:
    """A call of one of torch's functions, or of attention."""

    function: object
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    made: Any


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a module."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    made: Any
    versions: tuple[int, ...]
    """Number of writes to each tensor of `args` by then."""
    start: int
    stop: int
    """Its steps among all."""

    @property
    def is_plain(self) -> bool:
        """It reads one tensor, and makes one."""
        tensors = (*self.args, self.made)
        return len(self.args) == 1 and not self.kwargs and all(isinstance(one, torch.Tensor) for one in tensors)

    @property
    def read(self) -> Any:
        """The first of what it reads."""
        return self.args[0]


class Reads(TorchFunctionMode):
    """Writes down what runs while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[nn.Module, list[Call]] = {}
        """Those of each module, in their order."""
        self.steps: list[Step] = []
        self.keywords: dict[nn.Module, Mapping[str, Any]] = {}
        """Keywords that attention got from each module."""
        self._makers: dict[int, Step] = {}
        self._starts: list[int] = []

    def __enter__(self) -> Self:
        begin = register_module_forward_pre_hook(lambda _module, _args: self._starts.append(len(self.steps)))
        self._hooks = begin, register_module_forward_hook(self._called, with_kwargs=True)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.__name__ != "__get__":  # of a property, like a shape
            self.steps.append(Step(func, args, kwargs or {}, made))
            self._makers.setdefault(id(made), self.steps[-1])  # every tensor is kept, so no other has its id
        return made

    def _called(self, module: nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        versions = tuple(one._version for one in args if isinstance(one, torch.Tensor))
        start = self._starts.pop()
        call = Call(module, args, kwargs, made, versions, start, len(self.steps))
        self.calls.setdefault(module, []).append(call)

    def attending(
        self, attention: Callable[..., tuple[torch.Tensor, None]]
    ) -> Callable[..., tuple[torch.Tensor, None]]:
        """The same in place of attention, written down."""

        def attend(
            module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **keywords: Any
        ) -> tuple[torch.Tensor, None]:
            made = attention(module, query, key, value, *rest, **keywords)
            self.steps.append(Step(ATTENTION, (query, key, value), {}, made[0]))
            self.keywords[module] = keywords
            return made

        return attend

    def once(self, module: nn.Module) -> Call | None:
        """The call of a module that is called once; None: it is not."""
        calls = self.calls.get(module, [])
        return calls[0] if len(calls) == 1 else None

    def only(self, module: nn.Module) -> Call | None:
        """The same, if it reads one tensor and makes one."""
        call = self.once(module)
        return call if call is not None and call.is_plain else None

    def step_of(self, made: object) -> Step | None:
        """The step that made a tensor."""
        return self._makers.get(id(made))


def in_words(steps: Iterable[Step], names: Mapping[int, object]) -> list[object]:
    """Steps with numbers for tensors, so that those of two passes are equal if they do the same. `names`: the tensors
    that they begin with, by id; any other is equal to none."""
    known, words = dict(names), list[object]()

    def word(one: Any) -> object:
        if isinstance(one, torch.Tensor):
            return known.get(id(one), object())
        if isinstance(one, tuple | list):
            return tuple(map(word, one))
        return one

    for number, step in enumerate(steps):
        kwargs = sorted(step.kwargs.items())
        words.append(
            (step.function, word(step.args), word([value for _, value in kwargs]), [name for name, _ in kwargs])
        )
        for place, made in enumerate(step.made if isinstance(step.made, tuple) else (step.made,)):
            known[id(made)] = number, place
    return words
