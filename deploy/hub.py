"""MODEL as the id of a repository on the Hugging Face hub: `organisation/name[@REVISION][:QUANTIZATION]`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from quire.deploy.flags.arguments import UsageError
from quire.deploy.weight_files import has_safetensors
from quire.worker.weights.gguf.files import SPLIT, SUFFIX, is_beside

UNWANTED: Final = ("consolidated*.safetensors",)
"""Mistral's repositories have all weights twice: these are named otherwise, and nothing here reads them."""
REMEDY: Final = (
    "give the path of a GGUF file, or of a local directory with config.json, tokenizer.json and *.safetensors"
)
MOST_LISTED: Final = 24
_ID: Final = re.compile(
    r"(?P<repository>[\w][\w.-]*/[\w][\w.-]*)(?:@(?P<revision>[\w./-]+))?(?::(?P<quantization>[\w./-]+))?"
)
_QUANTIZATION: Final = re.compile(
    r".*?(?P<label>(?<![a-z0-9])(UD-)?(i?q\d\w*|tq\d\w*|bf16|fp?(16|32)|mxfp4\w*|nvfp4\w*))", re.ASCII | re.IGNORECASE
)
"""The stem of a file, whose end names the type of most of its tensors."""


class NotHereError(UsageError):
    """The file of a repository that says what the model is has not been fetched."""


@dataclass(frozen=True, slots=True)
class HubId:
    repository: str
    revision: str | None = None
    quantization: str = ""
    """That of a GGUF file, as its name has it, or its name; empty: there is one, or the weights are safetensors."""


@dataclass(frozen=True, slots=True)
class Found:
    path: Path
    """The directory of a revision, or the GGUF file in it."""
    names: tuple[str, ...]
    """Names of all files of the revision, as far as they are known."""


def read_id(given: str) -> HubId | None:
    """The id of a repository; None: it is none."""
    match = _ID.fullmatch(given)
    return None if match is None else HubId(match["repository"], match["revision"], match["quantization"] or "")


def fetch(hub_id: HubId, wanted: Sequence[str], with_weights: bool) -> Found:
    """The files of these patterns, of one commit, so that two never mix; from the local cache when offline.

    Of a repository of GGUF files it is one model of them. Raises `UsageError` where it is not clear which, and
    NotHereError where it would be fetched, but not `with_weights`.
    """
    from httpx import HTTPError  # takes longer to load than all that a local model needs

    try:
        return _fetched(hub_id, wanted, with_weights)
    except (HTTPError, OSError) as error:
        if (folder := _cached(hub_id.repository, hub_id.revision)) is None:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise UsageError(
                f"MODEL {hub_id.repository!r}: neither a directory here, nor in the local hub cache, and the hub did "
                f"not answer ({reason}); {REMEDY}"
            ) from error
    names = tuple(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()))
    files = gguf_files(hub_id, names)
    return Found(folder / files[0] if files else folder, names)


def _fetched(hub_id: HubId, wanted: Sequence[str], with_weights: bool) -> Found:
    """As `fetch`, by the hub. Raises HTTPError or OSError where it does not answer."""
    from huggingface_hub import HfApi, snapshot_download

    info = HfApi().model_info(hub_id.repository, revision=hub_id.revision, timeout=20)
    names = tuple(one.rfilename for one in info.siblings or ())
    files = gguf_files(hub_id, names)
    if files and not with_weights:
        cached = _cached(hub_id.repository, info.sha)
        missing = [name for name in files if cached is None or not (cached / name).is_file()]
        if cached is None or missing:
            remedy = f"`hf download {hub_id.repository} {missing[0]}` fetches it"
            message = f"{missing[0]} says what the model is, and is not here yet; {remedy}"
            raise NotHereError(f"MODEL {hub_id.repository!r}: {message}")
        return Found(cached / files[0], names)
    which: dict[str, Any] = {"allow_patterns": files or list(wanted), "ignore_patterns": list(UNWANTED)}
    folder = Path(snapshot_download(hub_id.repository, revision=info.sha, **which))
    return Found(folder / files[0] if files else folder, names)


def _cached(repository: str, revision: str | None) -> Path | None:
    """The directory of a revision in the local cache; None: there is none."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except OSError:
        return None


def gguf_files(hub_id: HubId, names: Sequence[str]) -> list[str]:
    """The files of the one GGUF model that is meant; none: the weights are others. Raises `UsageError`."""
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.endswith(SUFFIX) and not is_beside(PurePosixPath(name).name):
            match = SPLIT.fullmatch(name)
            models.setdefault(match["stem"] if match else name.removesuffix(SUFFIX), []).append(name)
    asked = hub_id.quantization
    if not asked and (has_safetensors(names) or not models):
        return []
    labels = {stem: label(stem) for stem in models}
    alike = (asked.lower(), asked.removesuffix(SUFFIX).lower())
    meant = [stem for stem in models if not asked or alike[0] == labels[stem].lower() or alike[1] == stem.lower()]
    if len(meant) == 1:
        return models[meant[0]]
    among = meant or list(models)
    several = [labels[stem] for stem in among]
    shown = several if len(set(several)) == len(several) else [f"{stem}{SUFFIX}" for stem in among]
    choices = ", ".join(f":{one}" for one in shown[:MOST_LISTED])
    more = f" and {len(shown) - MOST_LISTED} more" if len(shown) > MOST_LISTED else ""
    holds = f"{'several' if meant else 'no'} GGUF models{f' of {asked!r}' if asked else ''}"
    remedy = f"write one behind the id: {choices}{more}" if models else "leave it out"
    raise UsageError(f"MODEL {hub_id.repository!r}: holds {holds}; {remedy}")


def label(stem: str) -> str:
    """The quantization that a file is named after; its whole name without one."""
    name = PurePosixPath(stem).name
    match = _QUANTIZATION.fullmatch(name)
    return match["label"] if match else name
