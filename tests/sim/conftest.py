"""Puts the simulator's modules on the import path (tests are collected in importlib mode)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
