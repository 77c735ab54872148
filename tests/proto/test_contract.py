"""The public contract: generated code is current, presence is explicit, names and numbers do not move."""

import subprocess
import sys
from pathlib import Path

from parts import golden

from quire.proto.generated import quire_pb2

ROOT = Path(__file__).parents[2]


AGAIN = "if it changed knowingly, run python tests/parts/golden.py"


def test_generated_code_is_made_from_the_committed_proto(tmp_path):
    subprocess.run(["sh", "proto/generate.sh", sys.executable, str(tmp_path)], cwd=ROOT, check=True)
    for path in sorted(tmp_path.iterdir()):
        assert path.read_text() == (ROOT / "proto" / "generated" / path.name).read_text(), path.name


def test_every_scalar_of_a_request_has_presence():
    for message in quire_pb2.DESCRIPTOR.message_types_by_name.values():
        if message.name.endswith("Request") or message.name in ("Chat", "ChatMessage", "Tool"):
            for field in message.fields:
                assert field.is_repeated or field.has_presence, f"{message.name}.{field.name}"


def test_services_and_methods_are_the_promised_ones():
    methods = {
        f"{service.name}.{method.name}{' stream' if method.server_streaming else ''}"
        for service in quire_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert methods == {
        "Inference.Generate",
        "Inference.Stream stream",
        "Inference.Tokenize",
        "Inference.Detokenize",
        "Inference.Classify",
        "Inference.Embed",
        "Inference.Score",
        "Control.GetServerInfo",
        "Control.ListModels",
        "Control.GetLoad",
        "Control.Abort",
        "Control.ExplainRequest",
        "Control.GetStatus",
    }


def test_field_numbers_have_not_moved():
    assert golden.contract().splitlines() == golden.CONTRACT.read_text().splitlines(), AGAIN
