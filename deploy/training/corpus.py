"""The corpus of the default model: the running interpreter's standard library, as files and as conversations."""

import ast
import contextlib
import io
import random
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, _, IM_END = range(3)
VOCABULARY = 4096

# Character-map tables and help-text dumps are large, repetitive and hardly code; the rest is tests and third parties.
SKIPPED_FOLDERS = {
    "test",
    "tests",
    "idle_test",
    "idlelib",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "encodings",
    "pydoc_data",
    "__pycache__",
    "ensurepip",
}
CHAT_SHARE = 0.10
TOKENS_PER_STEP = 4096


def standard_library() -> list[str]:
    """The texts of the standard library's modules, in the same order on every machine."""
    root = Path(sysconfig.get_path("stdlib"))
    texts = []
    for path in sorted(root.rglob("*.py")):
        folders = path.relative_to(root).parts[:-1]
        # `config-*` and `_sysconfigdata*` describe how this one interpreter was built.
        if any(part in SKIPPED_FOLDERS or part.startswith("config-") for part in folders):
            continue
        if not path.name.startswith("_sysconfigdata"):
            with contextlib.suppress(UnicodeDecodeError):
                texts.append(path.read_text(encoding="utf-8"))
    return [text for text in texts if text.strip()]


def chat_documents(text: str, rng: random.Random) -> Iterator[str]:
    """ChatML conversations made from one module: the user gives a docstring, the assistant writes the function."""
    lines = list(io.StringIO(text))  # not splitlines(), which also cuts at form feeds
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        doc, source = ast.get_docstring(node), "".join(lines[node.lineno - 1 : node.end_lineno])
        if not doc or len(doc) > 600 or len(source) > 2400:
            continue
        question = rng.choice(
            [
                doc,
                f"Write a Python function.\n\n{doc}",
                f"Write a Python function named `{node.name}`.\n\n{doc}",
                "Write the function `{}`: {}".format(node.name, doc.split("\n\n")[0]),
            ]
        )
        turns = [("user", question), ("assistant", textwrap.dedent(source).strip())]
        if rng.random() < 0.25:
            turns.insert(0, ("system", "You are a helpful assistant that writes Python."))
        yield "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE: its alphabet holds all 256 bytes, so any text survives the round trip."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, documents: list[str]) -> torch.Tensor:
    """One long stream of tokens in which every document ends with the end-of-text token."""
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(documents):
        ids.extend(encoding.ids)
        ids.append(END_OF_TEXT)
    return torch.tensor(ids)


def make_streams(seed: int, tokenizer: Tokenizer | None) -> tuple[Tokenizer, torch.Tensor, torch.Tensor, float, str]:
    """Tokenizer, training and validation streams, validation bytes for each token, and a line about the data."""
    rng = random.Random(seed)
    texts = standard_library()
    rng.shuffle(texts)
    held_out, kept = texts[::25], [text for index, text in enumerate(texts) if index % 25]
    tokenizer = tokenizer or train_tokenizer(kept)
    conversations = [document for text in kept for document in chat_documents(text, rng)]
    rng.shuffle(conversations)
    budget = CHAT_SHARE / (1 - CHAT_SHARE) * sum(map(len, kept))
    chosen: list[str] = []
    while conversations and budget > 0:
        chosen.append(conversations.pop())
        budget -= len(chosen[-1])
    documents = kept + chosen
    rng.shuffle(documents)
    training, validation = encode(tokenizer, documents), encode(tokenizer, held_out)
    corpus = (
        f"{len(kept)} modules and {len(chosen)} conversations made from their docstrings "
        f"({len(training) / 1e6:.2f} M tokens); {len(held_out)} modules held out "
        f"({len(validation) / 1e3:.0f} k tokens)"
    )
    return tokenizer, training, validation, sum(len(t.encode()) for t in held_out) / len(validation), corpus


def batches(stream: torch.Tensor, length: int, rng: torch.Generator) -> Iterator[torch.Tensor]:
    """Endless batches of `length + 1` tokens; each round cuts the stream at new places and shuffles the pieces."""
    count = max(1, TOKENS_PER_STEP // length)
    while True:
        offset = int(torch.randint(length, (1,), generator=rng))
        starts = torch.arange(offset, len(stream) - length - 1, length)
        starts = starts[torch.randperm(len(starts), generator=rng)]
        for chunk in torch.split(starts, count):
            yield torch.stack([stream[start : start + length + 1] for start in chunk.tolist()])
