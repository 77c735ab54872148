"""Says that it is ready, then waits."""

import sys
import time

from life import DIRECTORY, begin

INDEX = int(sys.argv[2])
begin(f"frontend{INDEX}")
(DIRECTORY / f"frontend-{INDEX}.ready").touch()
while True:  # a signal that comes right before a wait without end is seen after it
    time.sleep(0.05)
