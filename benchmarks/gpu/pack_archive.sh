#!/usr/bin/env bash
# Packs what `make gpu` needs on a machine without a network into one archive: Python 3.12, x86-64.
set -euo pipefail
cd "$(dirname "$0")/../.."
pip=$1 archive=$2
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
platforms=()
for version in _2_28 _2_27 _2_17 2014 1; do platforms+=(--platform "manylinux${version}_x86_64"); done
download=("$pip" download --quiet --disable-pip-version-check --only-binary=:all:
  --python-version 3.12 --implementation cp "${platforms[@]}" --dest "$wheels")
"${download[@]}" --requirement benchmarks/gpu/needs.txt
"${download[@]}" --no-deps --requirement benchmarks/gpu/needs-alone.txt
mkdir -p "$(dirname "$archive")"
git rev-parse HEAD > "$wheels/commit"
tar --create --file "$archive" --directory "$wheels" .
size=$(stat --format %s "$archive")
if ((size > 60 * 1024 * 1024)); then
  echo "$archive has $((size / 1024 / 1024)) MiB; at most 60 can be carried to the machine" >&2
  exit 1
fi
echo "$archive: $(ls "$wheels" | grep -c whl) wheels, $((size / 1024)) KiB"
