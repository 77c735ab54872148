"""`python tests/deploy/without_network.py BUNDLE DIR`: install a bundle into DIR and serve, where there is no network.

It runs itself again in a namespace of its own that has a loopback device and nothing else; needs util-linux' unshare
and user namespaces. `--path FOLDER` is on the path of the engine, not of the installation.
"""

import argparse
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

INSIDE = "--inside"
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--path", default="")
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.inside:
        alone = ["unshare", "--map-root-user", "--net", "--", sys.executable, *sys.argv, INSIDE]
        return subprocess.run(alone, check=False).returncode
    raise_loopback()
    begun = time.monotonic()
    installed = subprocess.run(
        [sys.executable, str(arguments.bundle / "install.py"), str(arguments.target)], check=False
    )
    if installed.returncode:
        return installed.returncode
    print(f"installed in {time.monotonic() - begun:.1f} s", flush=True)
    return serve(arguments.target / "bin" / "quire", arguments.path)


def raise_loopback() -> None:
    """Bring `lo` up, and make sure that there is nothing else."""
    assert [name for _, name in socket.if_nameindex()] == ["lo"], socket.if_nameindex()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def serve(quire: Path, path: str) -> int:
    """Start the engine that was installed, ask it for some tokens and stop it: its exit code."""
    begun = time.monotonic()
    given = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    engine = subprocess.Popen(
        [str(quire), "serve", "--port=0", "--grpc-port=0", "--num-threads=1"],
        env=given | ({"PYTHONPATH": path} if path else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert engine.stdout is not None
    lines: list[str] = []
    for line in engine.stdout:
        lines.append(line)
        if found := re.search(r"ready: .* HTTP on (\S+)", line):
            break
    else:
        print("".join(lines))
        return engine.wait() or 1
    print(f"ready after {time.monotonic() - begun:.1f} s", flush=True)
    body = json.dumps({"prompt": "def fibonacci(n):", "max_tokens": 8, "temperature": 0}).encode()
    request = urllib.request.Request(f"{found[1]}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        print(f"answered: {json.load(answer)['choices'][0]['text']!r}", flush=True)
    engine.send_signal(signal.SIGTERM)
    engine.communicate()
    return engine.returncode


if __name__ == "__main__":
    sys.exit(main())
