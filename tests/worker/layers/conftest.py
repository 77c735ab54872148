"""The modules that the tests of layers share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
