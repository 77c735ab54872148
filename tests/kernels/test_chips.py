"""What torch shows under the name of CUDA and is not, and what doctor says of the chip at hand."""

import re
from pathlib import Path

import pytest
import torch

from quire.kernels import chips
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device, DeviceError
from quire.worker.inspect import _kernel_proof, inspect

ROOT = Path(__file__).resolve().parents[2]
SENTENCE = "AMD GPUs are not served, which this build of torch is for (ROCm 7.2), and the CPU is"


@pytest.fixture
def amd(monkeypatch):
    """A build of torch for AMD's GPUs, and one of them."""
    monkeypatch.setattr(torch.version, "hip", "7.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


def test_an_amd_gpu_is_not_taken_for_one_with_cuda(amd, caplog):
    assert not chips.has_cuda()
    assert not Device("auto", 0).is_cuda
    assert caplog.messages == [f"device: {SENTENCE}"]
    with pytest.raises(DeviceError, match=re.escape(f"device: cuda is asked for but {SENTENCE}; use cpu or auto")):
        Device("cuda", 0)
    assert len(caplog.messages) == 1
    assert not Device("cpu", 0).is_cuda
    assert len(caplog.messages) == 1, "who asks for the CPU is told nothing"


def test_doctor_says_it_in_one_sentence(amd):
    sections, refusals = inspect(WorkerConfig(device="auto"))
    assert (sections["device"]["CUDA"], sections["device"]["CUDA devices"], refusals) == (SENTENCE, 0, [])
    assert inspect(WorkerConfig(device="cuda"))[1] == [f"device: cuda is asked for but {SENTENCE}; use cpu or auto"]


def test_one_place_knows():
    """Whoever else asks torch takes such a card for CUDA."""
    asking = re.compile(r"torch\.cuda\.is_available\(|torch\.version\.hip")
    folders = ("proto", "frontend", "scheduler", "worker", "kernels", "deploy")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert [path.name for path in paths if asking.search(path.read_text())] == ["chips.py"]


class Chip(Device):
    """A device of this compute capability."""

    capability = None

    def __init__(self, capability):
        self.capability = capability


@pytest.mark.parametrize(
    ("capability", "words"),
    [
        (100, {"compute capability 10.0": "the kernels are compiled for it, and never ran on it"}),
        (75, {"compute capability 7.5": "the kernels were neither compiled for it nor ran on it"}),
        (
            89,
            {"compute capability 8.9": "the kernels ran on one at commits abc; tests/gpu/RESULTS.md has each of them"},
        ),
        (None, {}),
    ],
)
def test_doctor_says_what_is_known_of_the_chip_at_hand(capability, words, monkeypatch):
    monkeypatch.setattr(chips, "RAN", {89: ("abc",)})
    assert _kernel_proof(Chip(capability)) == words


def test_what_ran_is_what_the_page_of_results_says():
    """Of the table of kernels, whose rows name one machine's last runs; both change together."""
    page = (ROOT / "tests" / "gpu" / "RESULTS.md").read_text()
    table = page[page.index("## Kernels") :].split("\n## ")[0]
    commits = {cells[-3].strip() for line in table.splitlines() if len(cells := line.split("|")) > 6} - {"---"}
    ran = {commit for commit in commits if re.fullmatch("[0-9a-f]{7}", commit)}
    assert commits == ran | {"last run at commit"}, "a kernel that never ran: say so in proof()"
    assert set(chips.RAN) == {90}
    assert set(chips.RAN[90]) == ran


def test_doctor_says_which_body_waits_for_a_run(monkeypatch):
    assert _kernel_proof(Chip(90))["prefill body"] == "plain: no run of the specialized one on this chip is on record"
    monkeypatch.setattr("quire.kernels.gpu.prefill_switch.is_trusted", lambda: True)
    assert _kernel_proof(Chip(90))["prefill body"] == (
        "specialized, for pages of 64 tokens and more (block_size); else plain"
    )
