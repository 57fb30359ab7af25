#!/usr/bin/env bash
# Measures transformers and dsv4rt one after the other on this machine and compares them.
# usage: run.sh [build folder, default build/release of this repository]
# DSV4RT_BENCH_VENV     virtual environment, created when missing (default ${TMPDIR:-/tmp}/dsv4rt-bench-venv)
# DSV4RT_BENCH_PYTHON   interpreter that creates it (default python3)
# DSV4RT_BENCH_OUT      folder for the JSON lines (default a new temporary folder)
# DSV4RT_BENCH_THREADS  threads of both engines (default 2)
# DSV4RT_BENCH_ENCODINGS  linear encodings of dsv4rt to measure (default "fp8", the released form)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
build=${1:-$root/build/release}
venv=${DSV4RT_BENCH_VENV:-${TMPDIR:-/tmp}/dsv4rt-bench-venv}
threads=${DSV4RT_BENCH_THREADS:-2}
bench=$build/tools/bench/bench_layer

if [[ ! -x $bench ]]; then
  echo "run.sh: $bench is missing; build the target bench_layer first" >&2
  exit 2
fi
if [[ ! -x $venv/bin/python ]]; then
  "${DSV4RT_BENCH_PYTHON:-python3}" -m venv "$venv"
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"

out=${DSV4RT_BENCH_OUT:-$(mktemp -d "${TMPDIR:-/tmp}/dsv4rt-bench.XXXXXX")}
mkdir -p "$out"
export OMP_NUM_THREADS=$threads
echo "$(nproc) processors, $threads threads, load $(cut -d' ' -f1-3 /proc/loadavg); results in $out" >&2

"$venv/bin/python" "$here/transformers_baseline.py" --threads "$threads" | tee "$out/transformers.jsonl"
for encoding in ${DSV4RT_BENCH_ENCODINGS:-fp8}; do
  "$bench" --json --threads "$threads" --encoding "$encoding"
done | tee "$out/dsv4rt.jsonl"
echo
"$venv/bin/python" "$here/compare.py" "$out/transformers.jsonl" "$out/dsv4rt.jsonl"
