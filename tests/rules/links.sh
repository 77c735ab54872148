#!/bin/sh
# links.sh DIRECTORY: DIRECTORY/quire -> the package and its six folders, the shape in which they install.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1/quire"
for name in __init__.py __main__.py entrypoints; do
    ln -sfn "$root/deploy/package/$name" "$1/quire/$name"
done
for folder in proto frontend scheduler worker kernels deploy; do
    ln -sfn "$root/$folder" "$1/quire/$folder"
done
