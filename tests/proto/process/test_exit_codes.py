"""The contract of exit statuses: the numbers stay, and no two meanings of one process share one."""

from quire.proto.process import exit_codes


def test_the_numbers_are_the_promised_ones():
    values = {name: value for name, value in vars(exit_codes).items() if name.isupper()}
    assert values == {
        "SUCCESS": 0,
        "FAILED": 1,
        "REFUSED": 2,
        "WORKER_NOT_WELCOMED": 3,
        "WORKER_FAILED": 4,
        "WORKER_REFUSED": 5,
        "INTERRUPTED": 130,
        "TERMINATED": 143,
        "PIPE_CLOSED": 141,
    }
    assert len(set(values.values())) == len(values)
