#!/usr/bin/env bash
# Fuzzes the parsers and interfaces that take what comes from outside, under ASan and UBSan (clang, libFuzzer):
#   scripts/fuzz.sh [--no-setup] [MINUTES | --seconds N] [--coverage] [TARGET...]
#   scripts/fuzz.sh [--no-setup] --coverage-only
# Every target of tests/fuzz (or those named) runs for so long, one minute unless told, as many at a time as there are
# cores. What is found grows in build/fuzz/corpus; an input that breaks a promise is kept in build/fuzz/findings and
# makes the script fail. Each run of a target begins with the same seed (SEED, 1 unless the environment tells another
# one), so that two machines try nearly the same inputs.
# --coverage then prints the lines of every parser (scripts/parser_coverage.py lists them) that the corpora and the
# tests of the same parsers reach, and fails if a parser is below its target; --coverage-only does that with the corpora
# of tests/fuzz alone and without fuzzing.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

setup=1
seconds=60
coverage=0
fuzz=1
targets=()
while (($# > 0)); do
  case "$1" in
    --no-setup) setup=0 ;;
    --seconds) seconds=${2:?--seconds N}; shift ;;
    --coverage) coverage=1 ;;
    --coverage-only) coverage=1; fuzz=0 ;;
    [0-9]*) seconds=$(($1 * 60)) ;;
    -*) echo "usage: $0 [--no-setup] [MINUTES | --seconds N] [--coverage | --coverage-only] [TARGET...]" >&2; exit 2 ;;
    *) targets+=("$1") ;;
  esac
  shift
done
all_targets=()
for source in tests/fuzz/*_fuzz.cpp; do all_targets+=("$(basename "$source" _fuzz.cpp)"); done
for target in "${targets[@]}"; do
  [[ " ${all_targets[*]} " == *" $target "* ]] && continue
  echo "$0: no target '$target'; there are: ${all_targets[*]}" >&2
  exit 2
done
((${#targets[@]} > 0)) || targets=("${all_targets[@]}")
((setup == 0)) || scripts/setup.sh --fuzz

fuzz_one() {
  local target=$1 folder=build/fuzz
  mkdir -p "$folder/corpus/$target" "$folder/findings/$target"
  local status=0
  "$folder/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512 \
    -seed="${SEED:-1}" -print_final_stats=1 -artifact_prefix="$folder/findings/$target/" "$folder/corpus/$target" \
    "tests/fuzz/corpus/$target" >"$folder/findings/$target.log" 2>&1 || status=$?
  local log=$folder/findings/$target.log result=clean
  ((status == 0)) || result="FAILED ($log)"
  stat_of() { sed -n "s/^stat::$1: *//p" "$log" | tail -n 1; }
  local inputs; inputs=$(find "$folder/corpus/$target" -type f | wc -l)
  printf '%-20s %10s %8s %9s %9s  %s\n' "$target" "$(stat_of number_of_executed_units)" "$inputs" \
    "$(stat_of slowest_unit_time_sec)" "$(stat_of peak_rss_mb)" "$result"
  return "$status"
}
export -f fuzz_one
export seconds

status=0
if ((fuzz)); then
  build_preset fuzz "${targets[@]/#/fuzz_}"
  mkdir -p build/fuzz/findings
  export UBSAN_OPTIONS=print_stacktrace=1
  echo "fuzzing ${#targets[@]} targets for $seconds s each"
  printf '%-20s %10s %8s %9s %9s  %s\n' target inputs kept 'slowest s' 'peak MiB' result
  printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz_one {}' || status=1
fi
((coverage)) || exit "$status"

# The tests of the parsers, without those that compute for long.
tests=(unit_base unit_model layout_test checkpoint_test engine_sequence_test c_api_test replay_log_test replay_run_test
       report_test tools_lib_test command_arguments_test c_ranks_mpi_test)
folder=build/fuzz-coverage
build_preset fuzz-coverage "${all_targets[@]/#/fuzz_}" "${tests[@]}"
profiles=$PWD/$folder/profiles
rm -rf "$profiles"
mkdir -p "$profiles"
programs=()
for target in "${all_targets[@]}"; do
  corpora=("tests/fuzz/corpus/$target")
  grown=build/fuzz/corpus/$target
  if ((fuzz)) && [[ -n $(ls "$grown" 2>/dev/null) ]]; then corpora+=("$grown"); fi
  program=$folder/tests/fuzz/fuzz_$target
  log=$folder/fuzz_$target.log
  LLVM_PROFILE_FILE=$profiles/fuzz_$target.profraw "$program" "${corpora[@]}" >"$log" 2>&1 ||
    { echo "$0: fuzz_$target fails on its corpus: $log" >&2; status=1; }
  programs+=(-object "$program")
done
for test in "${tests[@]}"; do programs+=(-object "$(find "$folder/tests" -name "$test" -type f)"); done
LLVM_PROFILE_FILE=$profiles/%p.profraw ctest --preset fuzz-coverage --parallel "$(nproc)" \
  -R "^($(IFS='|'; echo "${tests[*]}"))(_[0-9])?\$" || status=1  # those over MPI end in their number of ranks
llvm-profdata merge -o "$folder/all.profdata" "$profiles"/*.profraw
llvm-cov export -format=lcov -instr-profile "$folder/all.profdata" "${programs[@]}" >"$folder/all.lcov"
echo "lines of the parsers that the corpora and the tests reach"
scripts/parser_coverage.py "$folder/all.lcov" || status=1
exit "$status"
