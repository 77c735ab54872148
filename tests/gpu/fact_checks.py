"""What the numbers are worth nothing without: the machine, its versions, and whether a kernel runs on it at all."""

import os
import platform
from collections.abc import Iterator

import chip
import wheels
from report import Case, Given, Report


def facts(report: Report, given: Given) -> Iterator[Case]:
    yield Case("versions", lambda: _versions(report))
    yield Case("device", lambda: _device(report, given))


def commit(found: str) -> str:
    """`found` in the checkout; where git did not travel with it, what was noted when it was packed."""
    return wheels.COMMIT.read_text().strip() if found == "unknown" and wheels.COMMIT.exists() else found


def _versions(report: Report) -> None:
    import torch

    from quire.deploy.bench.report import report as reports

    report.figure("commit", commit(reports.commit()))
    report.figure("python", platform.python_version())
    report.figure("torch", torch.__version__)
    report.figure("cores", len(os.sched_getaffinity(0)))


def _device(report: Report, given: Given) -> None:
    from quire.worker.device.device import DeviceError

    try:
        found = chip.ask(given.device)
    except DeviceError as error:
        report.figure("no_device", str(error))
        raise
    report.figure("device", f"a stand-in for {found.name}, which computes nothing" if given.stands_in else found.name)
    report.figure("memory_bytes", found.total_memory())
    if not found.is_cuda:
        return
    import torch
    import triton

    report.figure("triton", triton.__version__)
    report.figure("capability", ".".join(map(str, torch.cuda.get_device_capability(found.torch))))
    from quire.kernels.linear.norm import rms_norm, rms_norm_reference

    x, weight = torch.randn(3, 64, device=found.torch), torch.randn(64, device=found.torch)
    report.number(
        "a kernel runs", float((rms_norm(x, weight, 1e-5) - rms_norm_reference(x, weight, 1e-5)).abs().max()), 1e-4
    )
