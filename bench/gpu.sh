#!/usr/bin/env bash
# One call on a machine with a GPU: checks the printed kernels there, measures them, and writes the tables into $OUT
# (default: bench/results). Wheels that the machine lacks are taken from .whl, where there is such a folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${OUT:-bench/results}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
if compgen -G '.whl/*.whl' >/dev/null; then
    python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" .whl/*.whl
fi
python3 -m pip install -q --no-index --no-deps --no-build-isolation --target "$site" .
export PYTHONPATH="$site:$PWD${PYTHONPATH:+:$PYTHONPATH}"

python3 -m pytest -q -rs -p no:cacheprovider tests/gpu
python3 -m bench.gpu.launch --json "$out/gpu_launch.json" --markdown "$out/gpu_launch.md"
python3 -m bench.gpu --json "$out/gpu.json" --markdown "$out/gpu.md"
