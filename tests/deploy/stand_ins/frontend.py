"""Says that it is ready, then waits."""

import signal
import sys

from life import DIRECTORY, begin

INDEX = int(sys.argv[2])
begin(f"frontend{INDEX}")
(DIRECTORY / f"frontend-{INDEX}.ready").touch()
while True:
    signal.pause()
