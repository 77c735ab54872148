"""A model that runs as the library's modules: the same to the engine as a `Decoder`."""

import torch
from torch import nn

from quire.worker.batch import Embedded, ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.embedding import Vocabulary
from quire.worker.memory.kv_cache import KVCache
from quire.worker.models.library.attention import Calls
from quire.worker.models.library.build import put_ours
from quire.worker.models.library.head import LabelHead, behind
from quire.worker.models.library.layers import Logits, look_up_in
from quire.worker.models.library.modules import build_modules, find_class, read_library_config, takes_types
from quire.worker.specs.library.spec import LibrarySpec


class LibraryModel(nn.Module):
    """Trunk and head of the library's, with linear layers, vocabulary, attention and cache of ours."""

    def __init__(self, spec: LibrarySpec, context: BuildContext) -> None:
        """Raises ModelError."""
        super().__init__()
        self.spec = spec
        kind = find_class(spec.architecture)
        parts = build_modules(kind, read_library_config(kind, spec.config), context.dtype, context.device)
        has_head = spec.pooling is None
        self.embedding = Vocabulary(
            context.at("embedding"), spec.vocab_size, spec.embedding_size, multiplied=spec.is_tied
        )
        self.head: Vocabulary | None = None
        if has_head and not spec.is_tied:
            self.head = Vocabulary(context.at("head"), spec.vocab_size, spec.hidden_size, looked_up=False)
        if spec.head is not None:
            parts.widen_head()
        put_ours(parts, spec, context, Logits(self.head or self.embedding) if has_head else None)
        look_up_in(parts.trunk.get_input_embeddings(), self.embedding)
        self.trunk = parts.trunk
        self.classifier = None if spec.head is None else LabelHead(parts)
        self.shell = None
        if has_head:
            self.shell, self._given = behind(parts)
        self.calls = Calls(context.group.rank, looks_ahead=spec.looks_ahead)
        self.takes_types = takes_types(self.trunk)
        self.calls.attach(self.trunk)

    def forward(self, batch: ForwardBatch, cache: KVCache, embedded: Embedded | None = None) -> torch.Tensor:
        """Run the step's tokens and write their keys and values to the cache -> hidden states [T, hidden]."""
        assert embedded is None, "its embeddings are looked up within the modules"
        self.calls.begin(batch, cache)
        types = {}
        if batch.token_types is not None and self.takes_types:
            types["token_type_ids"] = batch.token_types[None]
        positions = batch.positions[:1] + self.spec.first_position
        found = self.trunk(input_ids=batch.token_ids[None], position_ids=positions, use_cache=False, **types)
        hidden: torch.Tensor = found[0][0]
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Rows of `forward`'s result, [S, hidden] -> [S, vocab_size]: complete and equal on every rank."""
        assert self.shell is not None
        self._given.hidden = hidden[None]
        logits: torch.Tensor = self.shell(input_ids=None, use_cache=False).logits[0]
        return logits

    def best(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest tokens of such rows, int64 [S], and whether each row's logits are finite, bool [S]."""
        values, ids = self.logits(hidden).float().max(dim=-1)
        return ids, values.isfinite()

    @property
    def weight_bytes(self) -> int:
        """Memory of this rank's weights."""
        return sum(parameter.nbytes for parameter in self.parameters())
