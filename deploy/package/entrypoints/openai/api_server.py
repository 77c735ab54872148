"""`python -m quire.entrypoints.openai.api_server ARGUMENTS`: `quire serve`, as commands for vLLM spell it."""

import sys

from quire.deploy.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
