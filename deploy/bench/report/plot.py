"""`--plot FILE`: every series of a run over time, and its distribution. Needs the `plot` extra (matplotlib)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from quire.deploy.bench.report.errors import BenchError


def require(path: str) -> None:
    """Refuse before the run, not after it: a missing library or folder. Raises `BenchError`."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise BenchError("--plot: matplotlib is not installed; install quire[plot], or leave --plot out") from error
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise BenchError(f"--plot: folder {folder} does not exist; create it or name another file")


def write(path: str, title: str, series: Mapping[str, Sequence[float]]) -> None:
    """Draw one row per series: the samples in order on the left, the share of samples above a value on the right.

    The file's ending chooses the format (png, svg, pdf). Raises `BenchError` when nothing was measured.
    """
    require(path)
    from matplotlib.figure import Figure

    drawn = {name: samples for name, samples in series.items() if len(samples)}
    if not drawn:
        raise BenchError("--plot: this run measured no series to draw")
    figure = Figure(figsize=(11, 2.6 * len(drawn) + 0.6), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(len(drawn), 2, squeeze=False)
    for (left, right), (name, samples) in zip(axes, drawn.items(), strict=True):
        left.plot(samples, ".", markersize=2)
        left.set(ylabel=name, xlabel="sample")
        ordered = np.sort(np.asarray(samples, dtype=np.float64))
        right.step(ordered, 1.0 - np.arange(len(ordered)) / len(ordered))
        right.set(xlabel=name, ylabel="share at or above", yscale="log")
        right.grid(True, alpha=0.3)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise BenchError(f"--plot: cannot write {path}: {error}") from error
