"""The entry of a frontend process: `python -m quire.frontend CONFIG.json`; any number per engine."""

import asyncio
import gc
import os
import resource
import sys
from pathlib import Path

import msgspec

from quire.frontend.config import FrontendConfig
from quire.frontend.sandbox.errors import SandboxLost
from quire.frontend.server import FrontendServer, ListenError
from quire.proto.process import exit_codes
from quire.proto.process.flags import in_flags
from quire.proto.process.log_stream import begin_log
from quire.proto.process.parent_death import tie_to_parent
from quire.proto.process.process_exit import exit_after

SWITCH_SECONDS = 0.0005
"""Time after which a thread that prepares a long prompt gives the interpreter back to the event loop."""


async def serve(config: FrontendConfig) -> None:
    """Raises `ValueError` or `ListenError` for what the operator must change, `SandboxLost` where a child is killed."""
    server = FrontendServer(config)
    server.handle_signals()
    await server.start()
    gc.collect()
    gc.freeze()  # objects of the start live as long as the process: later collections need not visit them
    await server.run()


def main() -> int:
    tie_to_parent()
    sys.setswitchinterval(SWITCH_SECONDS)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a text is encoded by the thread that was chosen for it
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every connection is a descriptor
    flags: dict[str, str] = {}
    try:
        config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=FrontendConfig)
        flags = config.flags
        begin_log(config.log_level, "%(asctime)s %(levelname)s %(name)s %(message)s")
        asyncio.run(serve(config))
    except (ValueError, ListenError) as error:
        print(f"frontend: {in_flags(str(error), flags)}", file=sys.stderr)
        return exit_codes.REFUSED
    except SandboxLost as error:
        print(f"frontend: {error.why}", file=sys.stderr)  # the machine's fault, not the model's: worth another try
        return exit_codes.FAILED
    return exit_codes.SUCCESS


if __name__ == "__main__":
    exit_after(main)
