#!/bin/sh
# Makes proto/generated/ from proto/quire.proto. Run it at the repository's root: sh proto/generate.sh [PYTHON] [OUT]
# The virtual path makes the generated imports read `from quire.proto.generated import quire_pb2`.
set -eu
python=${1:-python}
out=${2:-proto/generated}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m grpc_tools.protoc -Iquire/proto/generated=proto \
    --python_out="$work" --pyi_out="$work" --grpc_python_out="$work" proto/quire.proto
# The service stubs come without annotations; the checker must not look into them.
sed -i '1i # mypy: ignore-errors' "$work"/quire/proto/generated/quire_pb2_grpc.py
sed -i '1i # mypy: disable-error-code="type-arg"' "$work"/quire/proto/generated/quire_pb2.pyi
cp "$work"/quire/proto/generated/* "$out"/
