"""The library's modules with our layers in them: what is replaced and what stays, under which paths."""

from collections.abc import Iterator

import torch
from torch import nn

from quire.worker.build_context import BuildContext
from quire.worker.models.library.joined import JoinedLinear, put_attention, put_gate
from quire.worker.models.library.layers import Declared, build_linear
from quire.worker.models.library.modules import Parts
from quire.worker.models.library.norms import put_norms
from quire.worker.models.library.plan import EXPERTS, style_of
from quire.worker.specs.library.spec import HALVES, LibraryJoin, LibrarySpec
from quire.worker.weights.parts import Part, whole

TRUNK, SHELL, HEAD = "trunk", "shell", "classifier.shell"
"""Names in our model of what runs the tokens, and of what makes logits of hidden states, or numbers of labels."""
DECLARED = "declared"
"""Name in a module of the library's of what its own tensors are declared by."""


def path_of(parts: Parts, name: str) -> str:
    """The path in our model of a module, by its name in the whole of the library's."""
    if parts.in_head(name):
        return ".".join(filter(None, (HEAD if parts.is_labelled else SHELL, name)))
    return ".".join(filter(None, (TRUNK, name[len(parts.prefix) :])))


def linear_modules(parts: Parts, head: nn.Module | None) -> Iterator[tuple[str, nn.Linear]]:
    """The linear layers that become ours, by their names; the output head is none of them, nor is one of labels."""
    for name, module in parts.whole.named_modules():
        if type(module) is nn.Linear and module is not head and not (parts.is_labelled and parts.in_head(name)):
            yield name, module


def own_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers that a checkpoint holds of a module that stays."""
    found: dict[str, torch.Tensor] = {name: one for name, one in module._parameters.items() if one is not None}
    for name, one in module._buffers.items():
        if one is not None and name not in module._non_persistent_buffers_set:
            found[name] = one
    return found


def staying_modules(parts: Parts, replaced: tuple[nn.Module | None, ...]) -> Iterator[tuple[str, nn.Module]]:
    """Modules of the library's with tensors of their own, but for linear layers of ours and what is `replaced`."""
    ours = {module for _, module in linear_modules(parts, None)}
    for name, module in parts.whole.named_modules():
        if module not in ours and module not in replaced and own_tensors(module):
            yield name, module


def put_ours(parts: Parts, spec: LibrarySpec, context: BuildContext, logits: nn.Module | None) -> None:
    """Replace the linear layers, and declare what the other modules hold. `logits`: takes the place of the output head;
    None: the model does without. Raises ModelError for what has no share."""
    head = parts.whole.get_output_embeddings()
    embedding = parts.trunk.get_input_embeddings()
    staying = list(staying_modules(parts, (head, embedding)))
    named = {path_of(parts, name): module for name, module in parts.whole.named_modules()}
    for name, _ in list(linear_modules(parts, head)):
        path = path_of(parts, name)
        if path in spec.linears:
            owner, _, own = name.rpartition(".")
            setattr(parts.whole.get_submodule(owner), own, build_linear(context.at(path), spec.linears[path], own))
    for join in spec.joins:
        _put_joined(named[join.owner], join, spec, context)
    if logits is not None:
        staying += _in_place_of(parts, head, logits)
    put_norms(parts.trunk)
    for name, module in staying:
        is_dealt = style_of(parts.whole, name) == EXPERTS and context.group.size > 1
        shares = context if is_dealt else context.alone
        module.add_module(DECLARED, _declared(module, spec, path_of(parts, name), shares))
        if is_dealt:
            module.register_forward_hook(lambda _module, _inputs, out: context.group.all_reduce(out.contiguous()))


def _put_joined(owner: nn.Module, join: LibraryJoin, spec: LibrarySpec, context: BuildContext) -> None:
    layers = {name: spec.linears[path] for name, path in zip(join.names, join.paths.values(), strict=True)}
    joined = JoinedLinear(context.at(join.path), layers)
    for name, place in joined.places.items():
        setattr(owner, name, place)
    owner.add_module(join.path.rpartition(".")[2], joined)
    if join.gate is not None:
        put_gate(owner, joined, owner.get_submodule(join.last), join.gate)
    if join.attends:
        put_attention(owner, joined, owner.get_submodule(join.last))


def _in_place_of(parts: Parts, head: nn.Linear, logits: nn.Module) -> list[tuple[str, nn.Module]]:
    """Put our output head there; itself, where it has a bias that is to be declared."""
    (name,) = (name for name, module in parts.whole.named_modules() if module is head)
    owner, _, own = name.rpartition(".")
    setattr(parts.whole.get_submodule(owner), own, logits)
    logits.register_parameter("bias", head.bias)
    return [] if head.bias is None else [(name, logits)]


def _declared(module: nn.Module, spec: LibrarySpec, path: str, context: BuildContext) -> Declared:
    """Each tensor as a whole, or a matrix for each expert and half where it is stored so."""
    parts: dict[str, tuple[Part, ...]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in own_tensors(module).items():
        rows = spec.expert_rows(f"{path}.{DECLARED}.{name}")
        parts[name] = _of_experts(name, tensor, rows, context) if rows else _as_one(tensor)
        axes = parts[name][0].axes
        shapes[name] = tuple(axis.length for axis in axes)
        if rows:
            shapes[name] = len(tensor), rows * axes[0].length, axes[1].length
    return Declared(module, parts, shapes)


def _as_one(tensor: torch.Tensor) -> tuple[Part, ...]:
    return (Part("", tuple(whole(size) for size in tensor.shape)),)


def _of_experts(name: str, tensor: torch.Tensor, rows: int, context: BuildContext) -> tuple[Part, ...]:
    """tensor [E, outputs, inputs]: each expert's outputs are stored as so many matrices."""
    count, outputs, inputs = tensor.shape
    if rows == len(HALVES):
        axes = context.share(name, outputs // rows), whole(inputs)
    else:
        axes = whole(outputs), context.share(name, inputs)
    length = axes[0].length
    return tuple(Part(f"{n}.{row}", axes, 0, row * length, (n,)) for n in range(count) for row in range(rows))
