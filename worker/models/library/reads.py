"""Tensors and who reads them in a forward pass of the library's modules: the layers that one product can make, and
gated blocks. A pass shows which tensor is which, so nothing is guessed of a module by its name or its numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Self

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

from quire.kernels.linear.activation import GATES, Gate
from quire.worker.models.library.build import path_of
from quire.worker.models.library.joined import InTurn, Turns
from quire.worker.models.library.modules import Parts
from quire.worker.models.library.trace import run_flat, unweighted
from quire.worker.specs.library.spec import NUMBER, LibraryJoin, LibraryLinear
from quire.worker.weights.parts import ModelError

PRODUCTS: Final = (torch.mul, torch.Tensor.mul, torch.Tensor.__mul__)
TRIED: Final = torch.cat([torch.linspace(-15.0, 15.0, 6001), torch.tensor([-1e4, -100.0, 100.0, 1e4])])
"""Numbers that tell activations apart."""


@dataclass(frozen=True, slots=True)
class Call:
    """A module's call with one tensor, which gave one."""

    module: nn.Module
    read: torch.Tensor
    version: int
    """Number of writes to `read` by then."""
    made: torch.Tensor


class Reads(TorchFunctionMode):
    """Writes down, while it is entered, what is called with one tensor, and what is the product of two."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[nn.Module, list[Call | None]] = {}
        """Those of each module in their order; None: one with something else than a tensor."""
        self.products: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        """Each with its factors behind it."""

    def __enter__(self) -> Self:
        self._hook = register_module_forward_hook(self._called, with_kwargs=True)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        self._hook.remove()
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in PRODUCTS and len(args) == 2 and all(isinstance(one, torch.Tensor) for one in args) and not kwargs:
            self.products.append((made, *args))
        return made

    def _called(self, module: nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        tensors = [*args, *kwargs.values(), made]
        plain = len(args) == 1 and len(tensors) == 2 and all(isinstance(one, torch.Tensor) for one in tensors)
        call = Call(module, args[0], args[0]._version, made) if plain else None
        self.calls.setdefault(module, []).append(call)

    def only(self, module: nn.Module) -> Call | None:
        """The call of a module that is called once, with one tensor; None: it is not."""
        calls = self.calls.get(module, [])
        return calls[0] if len(calls) == 1 else None


def joins(parts: Parts, reads: Reads, linears: Mapping[str, LibraryLinear]) -> tuple[LibraryJoin, ...]:
    """The layers that can be joined, by what a pass wrote down. `linears`: by their names in the library.

    None where a part of a joined product, whose rows are apart in memory, is not taken in a layer's place.
    """
    together: dict[tuple[object, ...], list[str]] = {}
    for module, name in _in_turn(parts, reads, linears):
        owner, _, own = name.rpartition(".")
        call, one = reads.only(module), linears[name]
        if call is not None and not own.isdigit() and one.dealt in ("", "outputs"):
            alike = owner, id(call.read), call.version, one.dealt, one.bias
            together.setdefault(alike, []).append(own)
    found = {(str(owner), tuple(names)) for (owner, *_), names in together.items() if len(names) > 1}
    found = _throughout(found, linears)
    if not _are_taken(parts, linears, found):
        return ()
    return tuple(_join(parts, reads, linears, *one) for one in sorted(found))


def _in_turn(parts: Parts, reads: Reads, linears: Mapping[str, LibraryLinear]) -> Iterator[tuple[nn.Module, str]]:
    """The layers in the order in which they were called first."""
    names = {parts.whole.get_submodule(name): name for name in linears}
    yield from ((module, names[module]) for module in reads.calls if module in names)


Group = tuple[str, tuple[str, ...]]
"""Name of a module, and of layers in it."""


def _throughout(found: set[Group], linears: Mapping[str, LibraryLinear]) -> set[Group]:
    """Those that are the same in every block: checkpoints' names are read by rules for all of them."""
    kinds: dict[str, set[tuple[str, ...]]] = {}
    joined = {f"{owner}.{name}": names for owner, names in found for name in names}
    for name in linears:
        kinds.setdefault(NUMBER.sub("{}", name), set()).add(joined.get(name, ()))
    return {
        (owner, names)
        for owner, names in found
        if all(len(kinds[NUMBER.sub("{}", f"{owner}.{name}")]) == 1 for name in names)
    }


def _are_taken(parts: Parts, linears: Mapping[str, LibraryLinear], found: set[Group]) -> bool:
    """The modules run with parts of joined products in the places of their layers."""
    before: list[tuple[nn.Module, str, nn.Module]] = []
    for owner, names in found:
        module = parts.whole.get_submodule(owner)
        widths = [linears[f"{owner}.{name}"].outputs for name in names]
        turns = Turns(partial(_unmade, sum(widths)), widths)
        for place, name in enumerate(names):
            before.append((module, name, module.get_submodule(name)))
            setattr(module, name, InTurn(turns, place))
    try:
        run_flat(parts, unweighted)
    except ModelError:
        return False
    finally:
        for module, name, layer in before:
            setattr(module, name, layer)
    return True


def _unmade(width: int, x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((len(x), width))


def _join(
    parts: Parts, reads: Reads, linears: Mapping[str, LibraryLinear], owner: str, names: tuple[str, ...]
) -> LibraryJoin:
    """The layers, and the gate if their module is `last(gate(first) * second)` of two and nothing else."""
    join = LibraryJoin(owner=path_of(parts, owner), names=names)
    block = parts.whole.get_submodule(owner)
    whole, calls = reads.only(block), {name: reads.only(child) for name, child in block.named_children()}
    first, second, *others = (calls[name] for name in names)
    if whole is None or first is None or second is None or others or whole.read is not first.read or whole.version:
        return join
    last = next((one for one in calls.values() if one is not None and one.made is whole.made), None)
    gate = next((one for one in calls.values() if one is not None and one.read is first.made), None)
    behind = next((name for name, one in calls.items() if one is last), "")
    if gate is None or last is None or f"{owner}.{behind}" not in linears:
        return join
    product = last.read
    factors = next((two for made, *two in reads.products if made is product), [])
    is_product = {id(one) for one in factors} == {id(gate.made), id(second.made)}
    is_written = any(one._version for one in (first.made, second.made, gate.made, product))
    kind = _kind_of(gate.module) if is_product and not is_written else None
    return join if kind is None else replace(join, gate=kind, last=behind)


def _kind_of(activation: nn.Module) -> Gate | None:
    """The gate of ours that makes the same of numbers; None: there is none, or it has learned something."""
    if [*activation.parameters(), *activation.buffers()]:
        return None
    made = activation(TRIED)
    return next((kind for kind, one in GATES.items() if torch.allclose(made, one(TRIED), 1e-5, 1e-6)), None)
