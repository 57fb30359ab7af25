#!/usr/bin/env bash
# Fuzzes the parsers and interfaces that take what comes from outside, under ASan and UBSan (clang, libFuzzer):
#   scripts/fuzz.sh [--no-setup] [MINUTES | --seconds N] [--coverage] [TARGET...]
# Every target of tests/fuzz (or those named) runs for so long, one minute unless told, as many at a time as there are
# cores. What is found grows in build/fuzz/corpus; an input that breaks a promise is kept in build/fuzz/findings and
# makes the script fail. Each run of a target begins with the same seed (SEED, 1 unless the environment tells another
# one), so that two machines try nearly the same inputs. --coverage then prints the lines of the fuzzed sources that the
# corpora and the tests of the same parsers reach.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

setup=1
seconds=60
coverage=0
targets=()
while (($# > 0)); do
  case "$1" in
    --no-setup) setup=0 ;;
    --seconds) seconds=${2:?--seconds N}; shift ;;
    --coverage) coverage=1 ;;
    [0-9]*) seconds=$(($1 * 60)) ;;
    -*) echo "usage: $0 [--no-setup] [MINUTES | --seconds N] [--coverage] [TARGET...]" >&2; exit 2 ;;
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

build_preset fuzz "${targets[@]/#/fuzz_}"
mkdir -p build/fuzz/findings
export UBSAN_OPTIONS=print_stacktrace=1

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

echo "fuzzing ${#targets[@]} targets for $seconds s each"
printf '%-20s %10s %8s %9s %9s  %s\n' target inputs kept 'slowest s' 'peak MiB' result
status=0
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz_one {}' || status=1

if ((coverage)); then
  tests=(unit_base unit_model checkpoint_test engine_sequence_test c_api_test replay_log_test tools_lib_test)
  build_preset fuzz-coverage "${targets[@]/#/fuzz_}" "${tests[@]}" >build/fuzz/coverage-build.log
  rm -f build/fuzz-coverage/*.profraw
  objects=()
  for target in "${targets[@]}"; do
    program=build/fuzz-coverage/tests/fuzz/fuzz_$target
    LLVM_PROFILE_FILE=build/fuzz-coverage/$target.profraw "$program" -runs=0 "build/fuzz/corpus/$target" \
      "tests/fuzz/corpus/$target" >/dev/null 2>&1 || status=1
    objects+=(-object "$program")
  done
  for test in "${tests[@]}"; do
    program=$(find build/fuzz-coverage/tests -name "$test" -type f)
    (cd "$(dirname "$program")" && LLVM_PROFILE_FILE=$OLDPWD/build/fuzz-coverage/$test.profraw "./$test" >/dev/null) ||
      status=1
    objects+=(-object "$program")
  done
  llvm-profdata merge -o build/fuzz-coverage/all.profdata build/fuzz-coverage/*.profraw
  echo "lines that the corpora and the tests reach"
  llvm-cov export -summary-only -instr-profile build/fuzz-coverage/all.profdata "${objects[@]}" |
    python3 -c '
import json, sys
parsers = ("checkpoint/safetensors_header", "checkpoint/weight_index", "checkpoint/checkpoint.",
           "checkpoint/attention_loader", "model/json_document", "model/model_config", "model/config_",
           "base/strict_json", "engine/sequence_snapshot", "capi/", "replay/", "lib/attention_trace", "lib/trace_run",
           "lib/trace_check")
for entry in json.load(sys.stdin)["data"][0]["files"]:
    name = entry["filename"]
    name = name[name.rfind("/src/") + 5:] if "/src/" in name else name[name.rfind("/tools/") + 7:]
    lines = entry["summary"]["lines"]
    if name.endswith(".cpp") and name.startswith(parsers) and lines["covered"] > 0:
        print("%-45s %5d of %5d  %6.1f %%" % (name, lines["covered"], lines["count"], lines["percent"]))
'
fi
exit "$status"
