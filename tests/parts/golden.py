"""`python tests/parts/golden.py` writes the golden files of the contract and of internal messages again.

A difference is a contract that changed: it is looked at before it is committed, and raises PROTOCOL_VERSION.
"""

import importlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
from google.protobuf import descriptor_pb2

from quire.proto.generated import quire_pb2
from quire.proto.transport.wire import encode

PROTO = Path(__file__).parents[1] / "proto"
CONTRACT, MESSAGES = PROTO / "golden_contract.txt", PROTO / "golden_messages.json"


def contract() -> str:
    """Every field of the public messages with its number and protobuf's number of its type."""
    proto = descriptor_pb2.FileDescriptorProto()
    quire_pb2.DESCRIPTOR.CopyToProto(proto)
    fields = [(message.name, field) for message in proto.message_type for field in message.field]
    return "".join(f"{message}.{field.name} = {field.number} {field.type}\n" for message, field in fields)


def messages(examples: Iterable[msgspec.Struct]) -> str:
    """The frames of each internal message's example, in hexadecimal."""
    frames = {type(one).__name__: " ".join(frame.hex() for frame in encode(one)) for one in examples}
    return json.dumps(frames, indent=1) + "\n"


def main() -> None:
    sys.path.insert(0, str(PROTO))
    CONTRACT.write_text(contract())
    MESSAGES.write_text(messages(importlib.import_module("conftest").EXAMPLES))


if __name__ == "__main__":
    main()
