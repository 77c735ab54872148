"""Parts that fail in every way there is, to try what runs them. They need no device, and but one of them torch."""

import os
import signal
import sys
import time
from collections.abc import Iterator

from report import Case, Given, Lost, Report

DAYS = 1e6


def cases(part: str, report: Report, given: Given) -> Iterator[Case]:
    """Three cases, of which the second has the fault that the part is named after."""
    if part == "slow import":
        time.sleep(DAYS)
    if part == "broken list":
        raise ValueError("planted")
    yield Case("before", lambda: report.holds("sound", True, str(given.folder)))
    yield Case("planted", lambda: _fault(part, report))
    yield Case("behind", lambda: report.number("small", os.getpid() * 0.0, 1.0))


def _fault(part: str, report: Report) -> None:
    match part:
        case "raises":
            report.number("half done", 0.5, 1.0)
            raise ValueError("planted")
        case "wrong":
            report.number("off", float("nan"), 1.0, "planted")
        case "hangs":
            print("going to sleep", flush=True)
            time.sleep(DAYS)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "loses its device":
            import torch

            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        case "loses its engine":
            raise Lost("planted")
        case "exits":
            sys.exit(3)
