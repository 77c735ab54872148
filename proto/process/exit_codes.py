"""Exit statuses of every process of an engine, in one place: what one process ends with, its starter reads.

Every process ends with 1 and a traceback where an exception was not expected (`process_exit.exit_after`), and with a
negative status (`subprocess`) where a signal ended it. A worker has numbers of its own, so that the supervisor can
tell what it decided from what Python and `argparse` (2) end a process with.
"""

SUCCESS = 0
"""Every process: it did what it was asked, or was told to stop. A worker: a `Stop` message or SIGTERM."""

FAILED = 1
"""`quire serve`: the engine did not start or gave up; another command: its work failed, or something was refused."""

REFUSED = 2
"""`quire` and a frontend: the command line, the configuration or the model must change first; the message says how."""

WORKER_NOT_WELCOMED = 3
"""A worker: the scheduler did not answer its hello in time, or with another epoch."""

WORKER_FAILED = 4
"""A worker: an error at its start or in a step. The supervisor starts the whole group again."""

WORKER_REFUSED = 5
"""A worker: this model or configuration will never run here. The supervisor does not try again and ends with
`REFUSED` at the engine's start, with `FAILED` later.
"""

INTERRUPTED = 130
"""A `quire` command other than `serve`: Ctrl-C, as a shell counts it (128 + SIGINT)."""

TERMINATED = 143
"""A `quire` command other than `serve`, or one that had not begun: SIGTERM or SIGHUP, counted as 128 + SIGTERM."""

PIPE_CLOSED = 141
"""A `quire` command: nobody reads its output any more, as a shell counts it (128 + SIGPIPE)."""
