#!/usr/bin/env bash
# Tests of the Python package on a GPU: scripts/gpu/python.sh LIBRARY DECLARATIONS [SITE...]
# LIBRARY is a libdsv4rt.so with the CUDA backend, DECLARATIONS the _declarations.py that
# `python3 python/tools/generate_declarations.py include/dsv4rt/c_api.h OUT` wrote, SITE folders with packages that the
# machine's Python lacks (cffi). The machine's Python has torch and transformers. Nothing is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
(($# >= 2)) || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }

package=$(mktemp -d)
trap 'rm -rf "$package"' EXIT
cp -r python/src/dsv4rt "$package"
cp -L "$1" "$package/dsv4rt/libdsv4rt.so"
cp "$2" "$package/dsv4rt/_declarations.py"
path=$package
for site in "${@:3}"; do path=$path:$site; done
PYTHONPATH=$path${PYTHONPATH:+:$PYTHONPATH} python3 -B python/tests_gpu/cuda_test.py
