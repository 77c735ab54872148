"""The spec of a head that gives labels numbers: what config.json says of a classifier, a reranker or a reward model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from quire.proto.messages.heads import Activation, HeadFacts
from quire.worker.config import AskedTask
from quire.worker.fields import MAX_INTEGER, Config, flag, shown
from quire.worker.weights.parts import ModelError

HeadTask = Literal["classify", "score", "reward"]
HEAD_TASKS: Final[tuple[str, ...]] = get_args(HeadTask)
MOST_LABELS: Final = 16_384
MOST_LABELS_OF_TOKENS: Final = 1024
"""Each token of a step has as many numbers."""
LONGEST_LABEL: Final = 256
_BY_PROBLEM: Final[dict[str, Activation]] = {
    "regression": "none",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
_BY_CLASS: Final[dict[str, Activation]] = {"Identity": "none", "Sigmoid": "sigmoid"}
"""Names of torch's modules, as sentence-transformers writes them down for a cross-encoder."""
TOKENS: Final = "classifier_from_token"
DIFFERENCE: Final = "from_2_way_softmax"
_PADDING: Final = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), 0),
    **dict.fromkeys(("olmo2", "olmo3", "seed_oss"), 1),
    "glm4": 151329,
    "ministral3": 11,
    "phi3": 32000,
    "smollm3": 128004,
}
"""By `model_type`, of the library's config classes that have one; those of the others are null."""
METHODS: Final = (DIFFERENCE, "no_post_processing")
"""Names that vLLM has for the ways from the logits of tokens to numbers of labels."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The layers of a head, which the architecture says."""

    dense: bool
    """A layer [hidden, hidden] and a tanh stand before the projection to the labels."""
    bias: bool
    tensors: str
    """Pattern of its tensors in a checkpoint, for who does without it."""
    by_token: bool = False
    """Each token gets labels; else a prompt does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """A head that makes a number for each label of one token's hidden state, or of every token's."""

    task: HeadTask
    labels: tuple[str, ...]
    activation: Activation
    dense: bool = False
    bias: bool = False
    tokens: tuple[int, ...] = ()
    """Tokens whose rows of the output head are its projection; empty: it has one of its own."""
    differs: bool = False
    """Its one number is what the logit of the second token has over that of the first."""
    by_token: bool = False
    """Every token of a prompt has its numbers; else one token's are the prompt's."""
    padding: int = -1
    """The token whose numbers are never a prompt's, where one's at its end are; -1: none."""

    @property
    def num_rows(self) -> int:
        """Outputs of the projection."""
        return len(self.tokens) or len(self.labels)

    @property
    def facts(self) -> HeadFacts:
        return HeadFacts(self.labels, self.activation, bool(self.tokens), self.by_token, self.padding)

    def num_elements(self, hidden: int) -> int:
        """Parameters of the head."""
        rows = self.num_rows + (hidden if self.dense else 0)
        return rows * (hidden + self.bias)


def read_head(config: Config, architecture: str, shape: HeadShape | None, asked: AskedTask) -> HeadSpec:
    """The head of the architecture for a task; auto: to score where a prompt has one label, else to classify.

    Raises ModelError for a task that its head does not serve.
    """
    if shape is None:
        remedy = "use embed, whose vectors score and rank, too" if asked == "score" else "use embed, generate or auto"
        raise ModelError("task", f"{architecture} has no head for {asked}; {remedy}")
    labels = read_labels(config)
    task = _of_tokens(labels, asked, architecture) if shape.by_token else _task(labels, asked, architecture)
    return HeadSpec(
        task=task,
        labels=labels,
        activation=_activation(config, task, labels),
        dense=shape.dense,
        bias=shape.bias and (not shape.by_token or flag(config, "token_classification_bias", True)),
        by_token=shape.by_token,
    )


def read_padding(config: Config) -> int:
    """The padding of a decoder with a head, whose last other token transformers labels, even of a text alone.

    Such models are often trained with one that ends each turn. Where config.json leaves it out it is that of the
    library's config class; null: -1.
    """
    stated: Any = config.get("pad_token_id", _PADDING.get(str(config.get("model_type"))))
    if stated is not None and (isinstance(stated, bool) or not isinstance(stated, int) or stated > MAX_INTEGER):
        raise ModelError("pad_token_id", f"must be a token id or null, got {shown(stated)}")
    return -1 if stated is None else max(-1, stated)


def _of_tokens(labels: tuple[str, ...], asked: AskedTask, who: str) -> HeadTask:
    """The task of a head that labels tokens. Raises ModelError for a score, and for more labels than all can have."""
    if asked == "score":
        raise ModelError("task", f"a score is one number, and {who} gives each token some; use classify, or reward")
    if len(labels) > MOST_LABELS_OF_TOKENS:
        raise ModelError("id2label", f"must name up to {MOST_LABELS_OF_TOKENS} labels of tokens, got {len(labels)}")
    return "reward" if asked == "reward" else "classify"


def _task(labels: tuple[str, ...], asked: AskedTask, who: str) -> HeadTask:
    """Raises ModelError for a score of several labels."""
    task: HeadTask = "score" if len(labels) == 1 else "classify"
    if asked in ("classify", "score", "reward"):
        task = asked
    if task == "score" and len(labels) > 1:
        raise ModelError("task", f"a score is one number, and {who} has {len(labels)} labels; use classify")
    return task


def read_token_head(config: Config, tokenizer: Path, asked: AskedTask) -> HeadSpec:
    """The head that rows of the output head make, of tokens that the config names as vLLM's do.

    The numbers are the tokens' logits, or of two the difference, whose sigmoid is the softmax of both. `tokenizer`: the
    directory of tokenizer.json. Raises ModelError.
    """
    names: Any = config.get(TOKENS)
    if (
        not isinstance(names, list)
        or not 1 <= len(names) <= MOST_LABELS
        or not all(isinstance(one, str) for one in names)
    ):
        raise ModelError(TOKENS, f'must be a list of tokens like ["no", "yes"], got {shown(names)}')
    method = DIFFERENCE if flag(config, "is_original_qwen3_reranker", False) else None
    method = config.get("method") or method
    if method not in METHODS:
        raise ModelError("method", f"must be one of {', '.join(METHODS)} beside {TOKENS}, got {shown(method)}")
    differs = method == DIFFERENCE
    if differs and len(names) != 2:
        raise ModelError(TOKENS, f"must be two tokens for {DIFFERENCE}, got {len(names)}")
    labels = tuple(names[1:] if differs else names)
    task = _task(labels, asked, "this head")
    activation = _activation(config, task, labels)
    tokens = _token_ids(tokenizer / "tokenizer.json", names)
    return HeadSpec(task=task, labels=labels, activation=activation, tokens=tokens, differs=differs)


def _token_ids(path: Path, names: list[str]) -> tuple[int, ...]:
    from tokenizers import Tokenizer  # other heads need none

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a bad file
        raise ModelError(TOKENS, f"{path} is needed for the ids of the tokens, and does not read: {error}") from error
    ids: list[int] = []
    for name in names:
        try:
            found = tokenizer.token_to_id(name)
        except UnicodeEncodeError:  # half of a surrogate pair is no text
            found = None
        if found is None:
            raise ModelError(TOKENS, f"{shown(name)} is no token of {path}; name one as it is written there")
        ids.append(found)
    return tuple(ids)


def read_labels(config: Config) -> tuple[str, ...]:
    """The names of the labels, as transformers counts and calls them. Raises ModelError."""
    stated, number = config.get("id2label"), config.get("num_labels")
    if stated is None:
        number = 2 if number is None else number
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST_LABELS:
            raise ModelError("num_labels", f"must be an integer in [1, {MOST_LABELS}], got {shown(number)}")
        return tuple(f"LABEL_{index}" for index in range(number))
    if not isinstance(stated, dict) or not 1 <= len(stated) <= MOST_LABELS:
        raise ModelError("id2label", f"must map the numbers of 1 to {MOST_LABELS} labels to their names")
    names = [stated.get(str(index)) for index in range(len(stated))]
    for index, name in enumerate(names):
        if not isinstance(name, str | int) or len(str(name)) > LONGEST_LABEL:
            raise ModelError(
                "id2label", f"must name label {index} in up to {LONGEST_LABEL} characters, got {shown(name)}"
            )
    return tuple(map(str, names))


def _activation(config: Config, task: HeadTask, labels: tuple[str, ...]) -> Activation:
    """Rewards are raw; a score follows sentence-transformers, a classification the problem it was trained for."""
    if task == "reward":
        return "none"
    if task == "score":
        return cross_encoder_activation(config)
    problem = config.get("problem_type")
    if problem is not None and problem not in (*_BY_PROBLEM,):  # whatever its type
        raise ModelError("problem_type", f"{shown(problem)} is not supported; supported: {', '.join(_BY_PROBLEM)}")
    if problem in ("regression", "multi_label_classification"):
        return _BY_PROBLEM[problem]
    return "softmax" if len(labels) > 1 else "sigmoid"


def cross_encoder_activation(config: Config) -> Activation:
    """The activation of a score, by the names that sentence-transformers has for it. Raises ModelError."""
    section: Any = config.get("sentence_transformers")
    stated = section.get("activation_fn") if isinstance(section, dict) else None
    stated = config.get("sbert_ce_default_activation_function") if stated is None else stated
    if stated is None:
        return "sigmoid"
    found = _BY_CLASS.get(str(stated).rpartition(".")[2])
    if found is None or not str(stated).startswith("torch."):  # another's code is never run
        supported = ", ".join(_BY_CLASS)
        raise ModelError("activation_fn", f"{shown(stated)} is not supported; supported: {supported}")
    return found
