"""Says that it is ready, then shows every now and then that it lives."""

import os
import sys
import time

from life import DIRECTORY, begin

INDEX = int(sys.argv[2])
begin(f"frontend{INDEX}")
READY = DIRECTORY / f"frontend-{INDEX}.ready"
READY.touch()
while True:
    os.utime(READY)
    time.sleep(0.1)
