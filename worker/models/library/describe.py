"""Description of a model by the library's own modules, a `LibrarySpec`. No weight is read."""

import inspect
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from transformers.utils import logging

from quire.worker.fields import (
    Config,
    architecture_of,
    checkpoint_dtype,
    read_config,
    read_generation,
    shown,
)
from quire.worker.models.library.build import DECLARED, linear_modules, own_tensors, path_of, staying_modules
from quire.worker.models.library.joins import joins
from quire.worker.models.library.modules import LIBRARY, Modules, Parts, build_modules, find_class, read_library_config
from quire.worker.models.library.plan import EXPERTS, dealt, style_of, undivided
from quire.worker.models.library.reads import Reads
from quire.worker.models.library.stored import Stored, ignored_names, pattern_of, stored_names, target_of
from quire.worker.models.library.trace import trace
from quire.worker.specs.kinds.ends import stated_ends
from quire.worker.specs.library.spec import HALVES, NUMBER, LibraryLinear, LibrarySpec, StoredName
from quire.worker.specs.sentence.pooling import Mode
from quire.worker.weights.parts import ModelError

WEIGHT = ".weight"
HEAD_POOLINGS: Final[Mapping[str, Mode]] = {"cls": "cls", "bos": "cls", "mean": "mean"}
"""The library's names for what a head takes of a text that is read in both directions."""


def describe(folder: Path) -> LibrarySpec:
    """The spec of the model in a folder, by the library's own modules. Raises ModelError."""
    return describe_config(read_config(folder), read_generation(folder))


def describe_config(config: Config, generation: Config) -> LibrarySpec:
    """The same, of the contents of the files."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # its advice is for those who train
    kind = find_class(architecture_of(config))
    read = read_library_config(kind, config)
    padding = getattr(read.get_text_config(), "pad_token_id", None)
    parts = build_modules(kind, read, torch.float32, torch.device("meta"))
    head, embedding = parts.whole.get_output_embeddings(), _embedding(parts.trunk)
    _refuse_vocabulary(kind, head, embedding)
    reads = Reads()
    hidden_size, attentions, looks_ahead = trace(parts, reads)
    named = dict(_linears(parts, head))
    joined = joins(parts, reads, named)
    paths = {one: path for join in joined for one, path in join.paths.items()}
    linears = {paths.get(path_of(parts, name), path_of(parts, name)): linear for name, linear in named.items()}
    staying = list(staying_modules(parts, (head, embedding)))
    stored = stored_names(parts.whole, _tensors(parts, head, embedding))
    rules = tuple(sorted(_rules(parts, stored, linears, paths, head, embedding), key=_is_general))
    first_position = _first_position(parts.trunk)
    by_expert = {one.template for one in stored if one.by_expert}
    experts = [(name, module) for name, module in staying if style_of(parts.whole, name) == EXPERTS]
    labels = _elements([(name, module) for name, module in staying if parts.is_labelled and parts.in_head(name)])
    is_tied = head is not None and head.weight is embedding.weight
    return LibrarySpec(
        architecture=kind.__name__,
        config=dict(config),
        library=LIBRARY,
        vocab_size=embedding.num_embeddings,
        hidden_size=hidden_size,
        embedding_size=embedding.embedding_dim,
        attentions=attentions,
        looks_ahead=looks_ahead,
        first_position=first_position,
        head_pooling=_head_pooling(parts, read, looks_ahead),
        padding=-1 if padding is None else padding,
        linears=linears,
        joins=joined,
        expert_tensors={_declared_path(parts, one.template): len(one.rows) for one in stored if one.by_expert},
        dealt_elements=_elements(experts),
        other_elements=_elements(staying)
        - _elements(experts)
        - labels
        + (0 if head is None or head.bias is None else head.out_features),
        label_elements=labels,
        tied_embeddings=is_tied,
        undivided=undivided(parts.whole, head, embedding) or _stored_together(experts, by_expert),
        max_model_len=_max_model_len(read) - first_position,
        dtype=checkpoint_dtype(config),
        eos_token_ids=stated_ends(config, generation),
        stored_names=rules,
        ignored_names=tuple(dict.fromkeys(ignored_names(parts, [rule.pattern for rule in rules]))),
        head_names=_head_names(parts, head),
        linear_names=tuple(_linear_names(stored, parts, head)),
        num_blocks=read.num_hidden_layers,
    )


def _linears(parts: Parts, head: Any) -> Iterable[tuple[str, LibraryLinear]]:
    """Those that become ours, by their names in the library."""
    for name, module in linear_modules(parts, head):
        sizes, shared = (module.out_features, module.in_features), dealt(parts.whole, name)
        yield name, LibraryLinear(outputs=sizes[0], inputs=sizes[1], bias=module.bias is not None, dealt=shared)


def _embedding(trunk: Modules) -> Any:
    """None: the library does not know which of the modules it is."""
    try:
        return trunk.get_input_embeddings()
    except RuntimeError:
        return None


def _refuse_vocabulary(kind: Modules, head: Any, embedding: Any) -> None:
    """Raises ModelError for an embedding or a head that ours cannot take the place of."""
    name = kind.__name__
    if not isinstance(embedding, nn.Embedding):
        raise ModelError("architectures", f"the embedding of {name} is no table; it is not served")
    if head is not None and (type(head) is not nn.Linear or head.out_features != embedding.num_embeddings):
        raise ModelError(
            "architectures", f"the output head of {name} is no product with the vocabulary; it is not served"
        )


def _tensors(parts: Parts, head: Any, embedding: Any) -> dict[str, torch.Tensor]:
    """Every tensor that a checkpoint holds, by its name in the modules."""
    is_tied = head is not None and head.weight is embedding.weight
    found: dict[str, torch.Tensor] = {}
    for path, module in parts.whole.named_modules():
        for name, tensor in own_tensors(module).items():
            if not (is_tied and module is head and name == "weight"):
                found[f"{path}.{name}" if path else name] = tensor
    return found


def _elements(modules: Iterable[tuple[str, nn.Module]]) -> int:
    return sum(tensor.numel() for _, module in modules for tensor in own_tensors(module).values())


def _stored_together(experts: list[tuple[str, nn.Module]], by_expert: set[str]) -> str:
    for name, module in experts:
        for own in own_tensors(module):
            if NUMBER.sub("{}", f"{name}.{own}") not in by_expert:
                return f"{name}.{own} is stored for all experts together, of which ranks read no share"
    return ""


def _first_position(trunk: Modules) -> int:
    """RoBERTa and its kin keep the rows up to that of padding for it."""
    for name, module in trunk.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.padding_idx) + 1
    return 0


def _head_pooling(parts: Parts, read: Any, looks_ahead: bool) -> Mode:
    """Raises ModelError for what a head takes of a text that no pooling of ours is."""
    kind = type(parts.whole)
    if parts.is_labelled and kind.__name__.endswith("ForSequenceClassification"):
        takes_last = "pad_token_id" in inspect.unwrap(kind.forward).__code__.co_names  # to find it
        if takes_last == looks_ahead:
            token, ways = ("last", "both directions") if takes_last else ("first", "one direction")
            message = f"the {token} token of a text that is read in {ways} gets no labels here; choose another model"
            raise ModelError("is_causal" if takes_last else "is_decoder", message)
    if not looks_ahead:
        return "last"
    stated = getattr(read, "classifier_pooling", "cls") if parts.is_labelled else "cls"
    if stated not in HEAD_POOLINGS:
        raise ModelError("classifier_pooling", f"{shown(stated)} is not served; served: {', '.join(HEAD_POOLINGS)}")
    return HEAD_POOLINGS[stated]


def _max_model_len(read: Any) -> int:
    length = getattr(read, "max_position_embeddings", None)
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise ModelError("max_position_embeddings", f"must be a positive integer, got {length!r}")
    return length


def _declared_path(parts: Parts, template: str) -> str:
    owner, _, name = template.rpartition(".")
    return f"{path_of(parts, owner)}.{DECLARED}.{name}"


def _rules(
    parts: Parts,
    stored: list[Stored],
    linears: Mapping[str, LibraryLinear],
    joined: Mapping[str, str],
    head: Any,
    embedding: Any,
) -> Iterable[StoredName]:
    """A rule for each kind of tensor. `joined`: paths of layers in the library -> in the model."""
    moved = {NUMBER.sub("{}", path): NUMBER.sub("{}", other) for path, other in joined.items()}
    pattern = partial(pattern_of, optional=parts.optional, left_out=not parts.trunk_name)
    kinds = {NUMBER.sub("{}", path): linear for path, linear in linears.items()}
    names = {module: name for name, module in parts.whole.named_modules() if module in (head, embedding)}
    for one in stored:
        owner, _, name = one.template.rpartition(".")
        path = moved.get(path_of(parts, owner), path_of(parts, owner))
        if owner == names[embedding]:
            target = f"embedding.{name}"
        elif head is not None and owner == names[head] and name == "weight":
            target = f"head.{name}"
        elif path in kinds and kinds[path].dealt == "halves":
            yield StoredName(pattern=pattern(one.rows[0]), target=f"{target_of(path)}.{{part}}.{name}", parts=HALVES)
            continue
        else:
            target = target_of(f"{path}.{name}" if path in kinds else _declared_path(parts, one.template))
        if path in kinds or target.startswith(("embedding.", "head.")):
            # quantized layers have tensors of other names beside it
            yield from _of_layer(pattern(one.rows[0]), target, name)
        elif one.by_expert:
            yield from _of_experts(one, map(pattern, one.rows), target)
        else:
            yield StoredName(pattern=pattern(one.rows[0]), target=target)


def _is_general(rule: StoredName) -> bool:
    """It takes tensors of any name, and stands behind those that take one."""
    return "<tensor>" in rule.pattern


def _of_layer(pattern: str, target: str, name: str) -> Iterable[StoredName]:
    if name == "weight":
        stem = pattern.removesuffix(r"\.weight")
        yield StoredName(pattern=rf"{stem}\.(?P<tensor>\w+)", target=f"{target.removesuffix(WEIGHT)}.{{tensor}}")


def _of_experts(one: Stored, patterns: Iterable[str], target: str) -> Iterable[StoredName]:
    owner, _, name = target.rpartition(".")
    numbers = one.template.count("{}")
    for place, pattern in enumerate(patterns):
        yield StoredName(pattern=pattern, target=f"{owner}.{{n{numbers}}}.{place}.{name}")


def _head_names(parts: Parts, head: Any) -> tuple[str, ...]:
    found = [name for name, module in parts.whole.named_modules() if module is head and head is not None]
    return tuple(pattern_of(name) for name in (*found, "lm_head"))


def _linear_names(stored: list[Stored], parts: Parts, head: Any) -> Iterable[str]:
    kinds = {NUMBER.sub("{}", name) for name, _ in linear_modules(parts, head)}
    for one in stored:
        if one.template.removesuffix(WEIGHT) in kinds and one.template.count("{}") < 2:
            yield one.rows[0].removesuffix(WEIGHT).replace("{}", "{n}")


def main(arguments: list[str]) -> int:
    """Prints one JSON object: the fields of a `LibrarySpec`, or {"field", "message"} of what is refused."""
    try:
        answer: dict[str, Any] = asdict(describe(Path(arguments[1])))
    except ModelError as error:
        answer = {"field": error.field, "message": error.message}
    json.dump(answer, sys.stdout)
    return 0
