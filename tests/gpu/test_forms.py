"""The small models of quantized weights: no form that a GPU serves is left out, and a wrong product is found."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts find each other as plain modules, because they are run from this folder."""
    monkeypatch.syspath_prepend(str(HERE))


def test_every_form_that_a_gpu_serves_has_a_model(tmp_path: Path) -> None:
    import forms

    from quire.worker.config import WorkerConfig
    from quire.worker.quant.form import DENSE, SERVED
    from quire.worker.specs.quantized import read_plan
    from quire.worker.specs.registry import read_spec

    found = {DENSE.name}
    for name in forms.names(few=False, stands_in=False):
        folder, _, options = forms.quantized(name, tmp_path, small=False)
        plan = read_plan(WorkerConfig(model=str(folder), **options), read_spec(folder))
        assert {form.name for form in plan.kinds} <= SERVED["cuda"], name
        found |= {form.name for form in plan.kinds}
    assert found == SERVED["cuda"]


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_a_product_that_leaves_out_a_share_of_its_inputs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    import chip
    import form_checks
    import forms
    from report import Report

    from quire.kernels.linear.linear_groups import linear_groups

    monkeypatch.setattr(forms, "STORED", ("awq",))
    monkeypatch.setattr(forms, "names", lambda few, stands_in: forms.STORED)
    sound = linear_groups.implementation("cpu")

    def without(x, *others):
        kept = x.clone()
        kept[:, : int(share * x.shape[1])] = 0
        return sound(kept, *others)

    monkeypatch.setattr(linear_groups, "implementation", lambda device: without)
    report = Report("forms", tmp_path / "lines")
    (case,) = [
        case
        for case in form_checks.quantized(report, chip.ask("cpu"), tmp_path, small=True, few=True, stands_in=False)
        if case.name == "awq: near the references"
    ]
    case.run()
    (entry,) = report._entries.values()
    assert entry.passed == (share == 0), entry
