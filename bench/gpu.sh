#!/usr/bin/env bash
# One call on a machine with a GPU: checks the printed kernels there, measures them, and writes the tables into $OUT
# (default: bench/results). Wheels that the machine lacks are taken from .whl, where there is such a folder. A step that
# fails is named at the end, and does not keep the others from being run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${OUT:-bench/results}
mkdir -p "$out"
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
# What is installed first may be what builds the package.
export PYTHONPATH="$site:$PWD${PYTHONPATH:+:$PYTHONPATH}"
if compgen -G '.whl/*.whl' >/dev/null; then
    python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" .whl/*.whl
fi
python3 -m pip install -q --no-index --no-deps --no-build-isolation --target "$site" .

failed=()
step() {
    "$@" || failed+=("$*")
}
step python3 -m pytest -q -rs -p no:cacheprovider tests/gpu
step python3 -m bench.gpu.launch --json "$out/gpu_launch.json" --markdown "$out/gpu_launch.md"
step python3 -m bench.gpu --json "$out/gpu.json" --markdown "$out/gpu.md"
step python3 -m bench.gpu.contest --json "$out/gpu_tuning.json" --markdown "$out/gpu_tuning.md"
if ((${#failed[@]})); then
    printf 'FAILED: %s\n' "${failed[@]}" >&2
    exit 1
fi
