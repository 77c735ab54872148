"""Layers of the library's modules that one product of ours can make, gated blocks, and attention behind rotations:
those that a pass which is written down shows to be nothing else."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from quire.kernels.linear.activation import GATES, Gate
from quire.worker.models.library.build import path_of
from quire.worker.models.library.joined import InTurn, Turns
from quire.worker.models.library.modules import Parts
from quire.worker.models.library.reads import Reads, in_words
from quire.worker.models.library.trace import run_flat, unweighted
from quire.worker.specs.library.spec import NUMBER, LibraryJoin, LibraryLinear
from quire.worker.weights.parts import ModelError

PRODUCTS: Final = (torch.mul, torch.Tensor.mul, torch.Tensor.__mul__)
TRIED: Final = torch.cat([torch.linspace(-15.0, 15.0, 6001), torch.tensor([-1e4, -100.0, 100.0, 1e4])])
"""Numbers that tell activations apart."""
HIDDEN, ANGLES = "hidden_states", "position_embeddings"
"""The library's names for what it reads, and for its cosines and sines."""
OWN: Final = ("scaling", "sliding_window")
"""The library's names for what attention is told, and the module holds."""
MORE: Final = ("softcap", "s_aux")
"""Those for what it may be told besides."""
ELEMENTWISE: Final = (
    torch.Tensor.to, torch.Tensor.float, torch.Tensor.cos, torch.Tensor.sin, torch.Tensor.mul, torch.Tensor.__mul__,
)  # fmt: skip


def joins(parts: Parts, reads: Reads, linears: Mapping[str, LibraryLinear]) -> tuple[LibraryJoin, ...]:
    """The layers that can be joined, by what a pass wrote down. `linears`: by their names in the library.

    None where a part of a joined product, whose rows are apart in memory, is not taken in a layer's place.
    """
    together: dict[tuple[object, ...], list[str]] = {}
    for module, name in _in_turn(parts, reads, linears):
        owner, _, own = name.rpartition(".")
        call, one = reads.only(module), linears[name]
        if call is not None and not own.isdigit() and one.dealt in ("", "outputs"):
            alike = owner, id(call.read), call.versions, one.dealt, one.bias
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
    children = {name for name, _ in block.named_children() if f"{owner}.{name}" in linears}
    for last in sorted(children - set(names)):
        if (kind := _gate(reads, block, names, last)) is not None:
            return replace(join, gate=kind, last=last)
        if _attends(reads, block, names, last):
            return replace(join, attends=True, last=last)
    return join


def _gate(reads: Reads, block: nn.Module, names: tuple[str, ...], last: str) -> Gate | None:
    """The gate, if the module is `last(gate(first) * second)` of two layers and nothing else."""
    whole, behind = reads.only(block), reads.only(block.get_submodule(last))
    first, second, *others = (reads.only(block.get_submodule(name)) for name in names)
    if whole is None or behind is None or first is None or second is None or others:
        return None
    if whole.read is not first.read or whole.versions != (0,) or behind.made is not whole.made:
        return None
    calls = (reads.only(child) for child in block.children())
    gate = next((one for one in calls if one is not None and one.read is first.made), None)
    product = reads.step_of(behind.read)
    if gate is None or product is None or product.function not in PRODUCTS:
        return None
    is_product = len(product.args) == 2 and {id(one) for one in product.args} == {id(gate.made), id(second.made)}
    is_written = any(one._version for one in (first.made, second.made, gate.made, behind.read))
    return _kind_of(gate.module) if is_product and not is_written else None


def _kind_of(activation: nn.Module) -> Gate | None:
    """The gate of ours that makes the same of numbers; None: there is none, or it has learned something."""
    if [*activation.parameters(), *activation.buffers()]:
        return None
    made = activation(TRIED)
    return next((kind for kind, one in GATES.items() if torch.allclose(made, one(TRIED), 1e-5, 1e-6)), None)


def _attends(reads: Reads, block: nn.Module, names: tuple[str, ...], last: str) -> bool:
    """A module does, step by step, what `_rotary` does, by angles that its rows of cosines and sines hold twice."""
    call, keywords = reads.once(block), reads.keywords.get(block, {})
    if call is None or call.args or len(names) != len("qkv") or not {HIDDEN, ANGLES} <= call.kwargs.keys():
        return False
    hidden, angles = call.kwargs[HIDDEN], call.kwargs[ANGLES]
    if not isinstance(angles, tuple) or len(angles) != len(("cos", "sin")) or not isinstance(call.made, tuple):
        return False
    scaling, window = keywords.get("scaling"), keywords.get("sliding_window")
    is_own = scaling is not None and (scaling, window) == tuple(getattr(block, name, None) for name in OWN)
    if not is_own or any(keywords.get(name) is not None for name in MORE):
        return False
    if not all(_is_doubled(reads, one) for one in angles):
        return False
    begin: dict[int, object] = {id(one): name for name, one in block.named_parameters()}
    begin |= {id(hidden): "hidden", id(angles[0]): "cos", id(angles[1]): "sin"}
    again = Reads()
    with again:
        try:
            made = _rotary(again, block, names, last, hidden, *angles)
        except (AttributeError, RuntimeError, TypeError):
            return False
    steps = reads.steps[call.start : call.stop]
    ends = steps[-1].made is call.made[0] and again.steps[-1].made is made
    return ends and in_words(steps, begin) == in_words(again.steps, begin)


def _rotary(
    reads: Reads,
    block: Any,
    names: tuple[str, ...],
    last: str,
    hidden: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    """Attention as our kernels have it, in the library's words: hidden [1, T, hidden], cos and sin [1, T, head_dim]."""
    shape = (*hidden.shape[:-1], -1, block.head_dim)
    query, key, value = (getattr(block, name)(hidden).view(shape).transpose(1, 2) for name in names)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    query = (query * cos) + (_turned(query) * sin)
    key = (key * cos) + (_turned(key) * sin)
    mixed, _ = reads.attending(unweighted)(block, query, key, value)
    flat = mixed.reshape(*hidden.shape[:-1], -1).contiguous()
    out: torch.Tensor = getattr(block, last)(flat)
    return out


def _turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def _is_doubled(reads: Reads, angles: torch.Tensor) -> bool:
    """Its second half is the first again: it was made of one tensor beside itself, number by number."""
    made: Any = angles
    while (step := reads.step_of(made)) is not None and not made._version:
        if step.function is torch.cat:
            parts = step.args[0]
            return len(parts) == 2 and parts[0] is parts[1] and dict(step.kwargs) == {"dim": -1}
        others = [*step.args[1:], *step.kwargs.values()]
        if step.function not in ELEMENTWISE or any(isinstance(one, torch.Tensor) for one in others):
            return False
        made = step.args[0]
    return False
