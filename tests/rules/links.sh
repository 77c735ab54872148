#!/bin/sh
# links.sh DIRECTORY: DIRECTORY/quire/<folder> -> the six folders, the shape in which they install.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1/quire"
for folder in proto frontend scheduler worker kernels deploy; do
    ln -sfn "$root/$folder" "$1/quire/$folder"
done
