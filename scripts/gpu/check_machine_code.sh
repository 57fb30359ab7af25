#!/usr/bin/env bash
# What only the machine code of a program shows, of all its kernels for sm_90a: check_matrix_operands.py,
# check_shared_loads.py and check_early_loads.py say what. Needs no GPU.
#
#   scripts/gpu/check_machine_code.sh [--cuobjdump PATH] FILE
#
# Prints a line for each check, and what it found. Exit status: 0 clean; 1 something was found; 2 not checked.
set -uo pipefail

cuobjdump=()
if [[ ${1-} == --cuobjdump && $# -ge 2 ]]; then
  cuobjdump=(--cuobjdump "$(realpath -s "$(command -v "$2" || echo "$2")")")
  shift 2
fi
if [[ $# -ne 1 || $1 == -* ]]; then
  echo "usage: scripts/gpu/check_machine_code.sh [--cuobjdump PATH] FILE" >&2
  exit 2
fi
file=$(realpath -s "$1")
cd "$(dirname "$(realpath "$0")")" || exit 2

# Disassembled once: that takes longer than any of the checks.
listing=$(mktemp --suffix=.sass) || exit 2
trap 'rm -f "$listing"' EXIT
python3 -B machine_code.py "${cuobjdump[@]}" "$file" >"$listing" || exit 2

status=0
check() {
  local found=0 report
  report=$(python3 -B "$@" "${cuobjdump[@]}" "$listing") || found=$?
  ((found > 2)) && found=2
  grep -E "^  |not checked" -B1 <<<"$report"
  [[ -n $report ]] && echo "$1: $(tail -n 1 <<<"$report" | sed 's/^.*: //')"
  if ((found == 1 || status == 0)); then status=$found; fi
}
check check_matrix_operands.py
# Under way there on purpose: producers' look-ups of where rows lie, while they fill a slot; weights of the next
# products, when a piece of values is given back.
check check_shared_loads.py --allow 'attend_(block|pair|warpgroup)_kernel:LDS R' \
  --allow 'attend_warpgroup_kernel:LDS\.128'
# Scales of weights: the first, and of kernels whose consumers learn from their first stage that others have ended all
# of them. Sinks of two heads.
check check_early_loads.py --allow 'linear_(gemv|splitk)_kernel' 1 --allow linear_tile_kernel 4 \
  --allow 'linear_fp8_kernel<Fp8Shape<[0-9]+, 1,' 2 --allow 'linear_fp8_kernel<Fp8Shape<128, 2, 1>' 6 \
  --allow 'linear_fp8_kernel<Fp8Shape<[0-9]+, 2,' 4 --allow attend_warpgroup_kernel 2
exit "$status"
