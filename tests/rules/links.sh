#!/bin/sh
# links.sh DIRECTORY: DIRECTORY/quire -> the package and its six folders, the shape in which they install.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1/quire"
ln -sfn "$root/deploy/package/__init__.py" "$1/quire/__init__.py"
for folder in proto frontend scheduler worker kernels deploy; do
    ln -sfn "$root/$folder" "$1/quire/$folder"
done
