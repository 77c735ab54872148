"""Restarts: at once, then slower, then never, until the window has passed."""

from quire.deploy.supervisor.restart_budget import RestartBudget


def test_the_first_restart_is_immediate_and_later_ones_wait_longer() -> None:
    budget = RestartBudget(max_restarts=9, window_seconds=1000)
    assert [budget.spend(float(now)) for now in range(8)] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_used_up_budget_refuses_until_the_window_has_passed() -> None:
    budget = RestartBudget(max_restarts=3, window_seconds=300)
    assert [budget.spend(now) for now in (0.0, 10.0, 20.0)] == [0.0, 1.0, 2.0]
    assert budget.spend(299.0) is None
    assert budget.spend(300.0) == 2.0
    assert budget.spend(700.0) == 0.0


def test_a_crash_loop_is_one_however_long_a_model_loads() -> None:
    """It loads for 200 s, dies within 10, and so on: the window counts only the time in which it could die."""
    budget = RestartBudget(max_restarts=3, window_seconds=300)
    spent, now = [], 0.0
    for _ in range(4):
        spent.append(budget.spend(now))
        budget.pass_over(200.0)
        now += 210.0
    assert spent == [0.0, 1.0, 2.0, None]


def test_no_restart_may_be_allowed() -> None:
    assert RestartBudget(max_restarts=0, window_seconds=300).spend(0.0) is None
