"""The names that a checkpoint has for the tensors of the library's modules, by the library's own rules."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from transformers.core_model_loading import revert_weight_conversion

from quire.worker.models.library.modules import LIBRARY, POOLER, Modules, Parts
from quire.worker.specs.library.spec import NUMBER
from quire.worker.weights.parts import ModelError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """A kind of tensor, the same in every layer, and what a checkpoint holds in its place."""

    template: str
    """Name in the modules, with {} for numbers."""
    rows: tuple[str, ...]
    """Templates of the checkpoint's names: one; or those of each expert, which lie behind each other along rows."""
    by_expert: bool
    """The last number of the checkpoint's names is that of an expert, the first axis of the tensor."""


def stored_names(whole: Modules, tensors: Mapping[str, torch.Tensor]) -> list[Stored]:
    """Every kind of tensor in `tensors`, which are named as in the modules. Raises ModelError."""
    found: dict[str, Stored] = {}
    for name, tensor in tensors.items():
        template = NUMBER.sub("{}", name)
        if template not in found:
            found[template] = _stored(whole, name, template, tensor)
    makes: dict[str, str] = {}
    for one in found.values():
        for row in one.rows:
            if (other := makes.setdefault(row, one.template)) != one.template:
                raise ModelError(
                    "architectures", f"{LIBRARY} makes {other} and {one.template} of {row}, which is not read here"
                )
    return list(found.values())


def _stored(whole: Modules, name: str, template: str, tensor: torch.Tensor) -> Stored:
    saved = {saved: tuple(one.shape) for saved, one in revert_weight_conversion(whole, {name: tensor}).items()}
    rows = tuple(dict.fromkeys(NUMBER.sub("{}", one) for one in saved))
    numbers = NUMBER.findall(name)
    if (
        len(saved) == 1
        and set(saved.values()) == {tuple(tensor.shape)}
        and NUMBER.findall(next(iter(saved))) == numbers
    ):
        return Stored(template, rows, by_expert=False)
    shape = (tensor.shape[1] // len(rows), *tensor.shape[2:]) if tensor.ndim == 3 else ()
    expected = [
        row.format(*numbers, expert)
        for expert in range(len(tensor))
        for row in rows
        if row.count("{}") == len(numbers) + 1
    ]
    if set(saved) != set(expected) or set(saved.values()) != {shape}:
        shown = ", ".join(sorted(saved)[:3])
        raise ModelError("architectures", f"{LIBRARY} makes {name} of {shown}, which is not read here")
    return Stored(template, rows, by_expert=True)


def pattern_of(template: str, optional: str = "", *, left_out: bool = False) -> str:
    """The pattern of names of a template, with groups n0, n1, ... for its numbers; `optional`: a beginning that
    checkpoints may leave out; `left_out`: the template does so."""
    parts = [re.escape(part) for part in template.removeprefix(optional).split("{}")]
    numbers = iter(range(len(parts)))
    pattern = parts[0] + "".join(rf"(?P<n{next(numbers)}>\d+){part}" for part in parts[1:])
    is_optional = optional and (left_out or template.startswith(optional))
    return (f"(?:{re.escape(optional)})?" if is_optional else "") + pattern


def target_of(template: str) -> str:
    """The same with {n0}, {n1}, ... for the numbers."""
    numbers = iter(range(template.count("{}")))
    return re.sub(r"\{\}", lambda _: f"{{n{next(numbers)}}}", template)


def ignored_names(parts: Parts, known: Iterable[str]) -> Iterator[str]:
    """Patterns of what the library reads past where the modules have no place for it, of poolers that nothing reads,
    and of buffers that it computes.

    `known`: patterns of what has a place.
    """
    whole = parts.whole
    places = "|".join(re.sub(r"\?P<\w+>", "?:", pattern) for pattern in known)
    for pattern in sorted(whole._keys_to_ignore_on_load_unexpected or ()):
        yield rf"(?!(?:{places})\Z).*(?:{pattern}).*"
    yield r".*rotary_emb\.inv_freq"
    if getattr(parts.trunk, POOLER, None) is None:
        yield rf"(?:{re.escape(parts.optional)})?{POOLER}\..+"
    for path, module in whole.named_modules():
        for name in sorted(module._non_persistent_buffers_set):
            yield pattern_of(NUMBER.sub("{}", f"{path}.{name}"))
