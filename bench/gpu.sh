#!/usr/bin/env bash
# bench/gpu.sh [correctness] [build] [speed] [counters]: what bench/gpu/stages.py does on a machine with a GPU, all by default,
# with the tables in $OUT (default: bench/results). Wheels that the machine lacks are taken from .whl, where there is
# such a folder, and packages that were unpacked and packed more tightly (.tar.xz).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${OUT:-bench/results}
mkdir -p "$out"
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
# What is installed first may be what builds the package.
export PYTHONPATH="$site:$PWD${PYTHONPATH:+:$PYTHONPATH}"
for archive in .whl/*.tar.xz; do
    if [ -e "$archive" ]; then python3 -m tarfile -e "$archive" "$site"; fi
done
if compgen -G '.whl/*.whl' >/dev/null; then
    python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" .whl/*.whl
fi
python3 -m pip install -q --no-index --no-deps --no-build-isolation --target "$site" .

python3 -m bench.gpu.stages --out "$out" "$@"
