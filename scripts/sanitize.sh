#!/usr/bin/env bash
# Builds and tests under sanitizers:
#   scripts/sanitize.sh [asan-ubsan|fuzz|tsan]... [--only TEST,...] [-- <ctest argument>...]
# Without a name asan-ubsan and tsan run; fuzz is asan-ubsan with clang, in the build of the fuzz targets. Without ctest
# arguments the CPU tests run: unit, golden and property under ASan and UBSan; unit and golden under TSan. --only builds
# and runs just these test programs.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

presets=()
programs=()
while (($# > 0)) && [[ $1 != -- ]]; do
  case "$1" in
    asan-ubsan | fuzz | tsan) presets+=("$1") ;;
    --only) IFS=, read -ra programs <<<"${2:-}"; shift ;;
    *) echo "usage: $0 [asan-ubsan|fuzz|tsan]... [--only TEST,...] [-- <ctest argument>...]" >&2; exit 2 ;;
  esac
  shift
done
[[ ${1:-} == -- ]] && shift
((${#presets[@]} > 0)) || presets=(asan-ubsan tsan)

declare -A labels=([asan-ubsan]='^(unit|golden|property)$' [fuzz]='^(unit|golden|property)$' [tsan]='^(unit|golden)$')
for preset in "${presets[@]}"; do
  build_preset "$preset" "${programs[@]}"
  if ((${#programs[@]} > 0)); then
    ctest --preset "$preset" --parallel "$(nproc)" -R "^($(IFS='|'; echo "${programs[*]}"))\$" "$@"
  elif (($# > 0)); then
    ctest --preset "$preset" --parallel "$(nproc)" "$@"
  else
    ctest --preset "$preset" --parallel "$(nproc)" -L "${labels[$preset]}"
  fi
done
