#!/usr/bin/env bash
# Everything that a machine with a GPU can check: builds with CUDA, looks through the machine code for what only that
# shows, runs the GPU tests, a fast subset of them under compute-sanitizer, the benchmarks of single stages, and those
# of whole decode steps and prefills. Ends with tables of times (also as Markdown and JSON,
# scripts/gpu/bench_tables.py) and one of results; fails if anything failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() {
  cat <<'END'
scripts/gpu/run.sh [<option>...] [-- <cmake argument>...]
  --parts LIST       of build,operands,test,sanitize,bench; default all of them
                     (operands: scripts/gpu/check_machine_code.sh on the program dsv4rt; needs no GPU)
  --arch LIST        GPU code to build, as CMake names it; default 90a-real (H100, H200)
  --build-dir DIR    default build/cuda
  --tests REGEX      only GPU tests whose name matches, under compute-sanitizer too (of those that run there)
  --limit SECONDS    most time of a program under compute-sanitizer; default 600
  --at-once N        GPU tests at a time, but for those labelled gpu_alone, and programs under compute-sanitizer, each
                     on a processor and a share of the GPU; default 1
  --tools LIST       of memcheck,racecheck,initcheck,synccheck; default all of them
  --bench REGEX      only benchmarks whose name matches; whole steps are "whole_step", "whole_step_lengths",
                     "whole_step_long", "whole_prefill" and "whole_prefill_long", and those of products in FP8
                     "whole_step_fp8"
  --checkpoint DIR   whole steps run with this checkpoint; default DIR is made, of V4-Flash's shape with random weights
                     (6 GB), at <build-dir>/gpu-run/flash
  --shape NAME=ARGS  arguments of benchmark NAME (its --help lists them); may be repeated
  --baseline FILE    compare times with those of an earlier run's <build-dir>/gpu-run/times.json; a case that takes
                     more than 3 % longer is a failure
  --jobs N           parallel compilations; default all processors
Libraries in another place than the system's are found through CMAKE_PREFIX_PATH, from the environment or as
`-- -DCMAKE_PREFIX_PATH=DIR`. Packages: scripts/setup.sh. Logs: <build-dir>/gpu-run.
END
}

fail_usage() {
  echo "run.sh: $1" >&2
  usage >&2
  exit 2
}

parts=build,operands,test,sanitize,bench
arch=90a-real
build=build/cuda
tests=
tools=memcheck,racecheck,initcheck,synccheck
limit=600
at_once=1
bench=
checkpoint=
baseline=
jobs=$(nproc)
cmake_arguments=()
# Arguments of benchmarks that have any.
declare -A shapes=(
  [bench_write_kv_gpu]="--singles"
  [whole_step]="--whole-step 1x8192,4x8192,5x8192,8x8192,32x32768,33x32768,64x8192,65x8192,64x32768,128x8192,256x4096"
  [whole_step_lengths]="--whole-step 32x1024..32768,64x1024..32768,128x1024..32768"
  [whole_step_long]="--whole-step 1x131072,32x131072,1x524288,1x1048576"
  [whole_prefill]="--whole-prefill 8192"
  [whole_prefill_long]="--whole-prefill 65536"
  [whole_step_fp8]="--whole-step 1x8192,8x8192,32x32768,64x8192,128x8192,256x4096 --linear-precision fp8"
  [whole_prefill_fp8]="--whole-prefill 8192 --linear-precision fp8"
)
while (($# > 0)); do
  case "$1" in
    --help | -h) usage; exit 0 ;;
    --) cmake_arguments=("${@:2}"); break ;;
    --parts | --arch | --build-dir | --tests | --tools | --limit | --at-once | --bench | --checkpoint | --shape | \
      --baseline | --jobs)
      (($# > 1)) || fail_usage "$1 needs a value"
      case "$1" in
        --parts) parts=$2 ;;
        --arch) arch=$2 ;;
        --build-dir) build=$2 ;;
        --tests) tests=$2 ;;
        --tools) tools=$2 ;;
        --limit) [[ $2 =~ ^[1-9][0-9]*$ ]] || fail_usage "--limit takes seconds, not '$2'"; limit=$2 ;;
        --at-once) [[ $2 =~ ^[1-9][0-9]*$ ]] || fail_usage "--at-once takes a number, not '$2'"; at_once=$2 ;;
        --bench) bench=$2 ;;
        --checkpoint) checkpoint=$2 ;;
        --shape) [[ $2 == *=* ]] || fail_usage "--shape takes NAME=ARGS, not '$2'"; shapes[${2%%=*}]=${2#*=} ;;
        --baseline) [[ -f $2 ]] || fail_usage "--baseline: no file '$2'"; baseline=$2 ;;
        --jobs) jobs=$2 ;;
      esac
      shift 2 ;;
    *) fail_usage "unknown option $1" ;;
  esac
done
check_list() {
  local name
  for name in ${2//,/ }; do
    [[ ,$3, == *",$name,"* ]] || fail_usage "$1: '$name' is none of $3"
  done
}
check_list --parts "$parts" build,operands,test,sanitize,bench
check_list --tools "$tools" memcheck,racecheck,initcheck,synccheck
has_part() { [[ ,$parts, == *",$1,"* ]]; }

# What runs under compute-sanitizer: "tool program gtest-filter". Every kernel, clusters of every size. racecheck
# follows each access to shared memory and takes a hundred times as long as the program alone, or more: it gets tests
# of few launches, and no kernel without shared memory. In the kernel that takes tokens of few rows, scores and
# selection, it stalls when blocks form clusters and some of their warps end before others are at the cluster's barrier,
# and now and then when warps pass registers on: it sees clusters in a build where they do neither, and single blocks as
# they are. Of attention in prompts, whose warps pass on all the registers that there are, it ended no test within two
# minutes: it gets a build that passes on none.
sanitized=(
  "memcheck engine_gpu_test Formats/*:EngineGpu.FewTokens:EngineGpu.SeedProfile:EngineGpu.OddHeadCounts"
  "memcheck golden_trace_gpu_test *TailOfAPrefillChunk*:*ChildOutlives*"
  "memcheck linear_gpu_test *"
  "memcheck linear_fp8_gpu_test *-*TokensDoNot*"
  "memcheck write_kv_gpu_test *-*ChunksOfEveryLength*"
  "memcheck attend_gpu_test *"
  "memcheck attend_runs_gpu_test *OneRun*:*Several*:*NoNumbers*"
  "memcheck attend_queries_gpu_test *-*EveryCut*:*Again*:*LongPrefill*"
  "memcheck attend_encoded_gpu_test *FewTokens:*ShortPrompt*:*Runs*:*OtherKernels*:*NoNumbers*"
  "memcheck encode_fragments_gpu_test *"
  "memcheck early_reads_gpu_test *"
  "memcheck boundary_gpu_test *"
  "memcheck indexer_topk_gpu_test *"
  "memcheck cublaslt_linear_gpu_test *Nvfp4*:*BackendsDo*"
  "racecheck engine_gpu_test EngineGpu.FewTokens"
  "racecheck linear_gpu_test *FewTile*:*FewSingle*:*FewLane*:*Norms*:*E4m3*:*NanAnd*"
  "racecheck linear_fp8_gpu_test *FewVariants*:*FewEncodedOutputs*"
  "racecheck write_kv_gpu_test *HeadCounts:*SeedProfile:*Mixed*:*OtherCsa*"
  "racecheck attend_gpu_test *Padding*:*Sweeps*:*OneAttend*"
  "racecheck attend_decoded_fixed_registers_gpu_test *OfFewTokens"
  "racecheck attend_gpu_test *LaunchFar*InTurn*:*LaunchFar*TwoBlocks*:*DenseRowsFarFromTheFirst"
  "racecheck attend_encoded_gpu_test *OfFewTokens"
  "racecheck attend_runs_gpu_test *OneRun*"
  "racecheck attend_queries_gpu_test *One*:*.WithoutFrequencies*"
  "racecheck early_reads_gpu_test Rows*/0:Rows*/2:Rows*/11:Selected*/0:Selected*/2"
  "racecheck indexer_topk_gpu_test *Wide*:*Other*:*T67:*OneCounted*:*OneLaunch*:*RowsInMemory*:*TwoBlocks*:*UnevenRuns*"
  "racecheck indexer_topk_fixed_registers_gpu_test *OneSelect*"
  "initcheck engine_gpu_test EngineGpu.FewTokens:EngineGpu.SeedProfile"
  "initcheck linear_gpu_test *Grouped*:*E4m3*:*Strided*:*FewTile*:*FewSingle*:*FewLane*:*Norms*"
  "initcheck linear_fp8_gpu_test *FewVariants*:*Anywhere*:*Norms*:*FewEncodedOutputs*"
  "initcheck write_kv_gpu_test *HeadCounts:*OtherCsa*:*OtherHca*:*MoreCompleting*:*Mixed*"
  "initcheck attend_gpu_test *Padding*:*Sweeps*:*HeadCounts:*OneAttend*:*DenseRowsFar*:*OfSeveralSequences*"
  "initcheck attend_queries_gpu_test *-*EveryCut*:*Again*:*LongPrefill*"
  "initcheck attend_encoded_gpu_test *FewTokens:*ShortPrompt*:*OtherKernels*"
  "initcheck attend_runs_gpu_test *OneRun*:*Several*"
  "initcheck boundary_gpu_test *StepsKeep*:*TableRows*:*CallsFollow*"
  "initcheck indexer_topk_gpu_test *Wide*:*Nan*:*OneSelect*:*OneCounted*:*OneLaunch*:*RowsInMemory*:*Uneven*"
  "initcheck cublaslt_linear_gpu_test *Nvfp4*:*BackendsDo*"
  "synccheck engine_gpu_test Formats/*:EngineGpu.FewTokens:EngineGpu.SeedProfile"
  "synccheck linear_gpu_test *"
  "synccheck linear_fp8_gpu_test *-*TokensDoNot*"
  "synccheck write_kv_gpu_test *-*ChunksOfEveryLength*"
  "synccheck attend_gpu_test *"
  "synccheck attend_runs_gpu_test *OneRun*:*Several*"
  "synccheck attend_queries_gpu_test *-*EveryCut*:*Again*:*LongPrefill*"
  "synccheck attend_encoded_gpu_test *FewTokens:*ShortPrompt*:*OtherKernels*"
  "synccheck early_reads_gpu_test *"
  "synccheck indexer_topk_gpu_test *"
)

# Benchmarks by `dsv4rt bench`.
whole=(whole_step whole_step_lengths whole_step_long whole_step_fp8 whole_prefill whole_prefill_long whole_prefill_fp8)

# Tests of single stages, run four at a time too.
crowded=(indexer_topk_gpu_test linear_gpu_test attend_gpu_test write_kv_gpu_test)

# A machine that this script runs on has GPUs: a test that finds none fails instead of being left out.
if [[ -z ${DSV4RT_REQUIRE_GPU:-} ]]; then
  gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)
  export DSV4RT_REQUIRE_GPU=$((gpus > 0 ? gpus : 1))
fi

dsv4rt=$build/tools/dsv4rt/dsv4rt
logs=$build/gpu-run
mkdir -p "$logs"
summary=()  # "name|result|seconds|detail"
failures=0

# run_logged <name> <command>...: output to a log, one line of the summary. `detail` is set by the caller's
# function detail_of <log>, if any.
run_logged() {
  local name=$1 log=$logs/${1//[^A-Za-z0-9_.-]/_}.log begin=$SECONDS status=0
  shift
  echo "== $name"
  "$@" >"$log" 2>&1 || status=$?
  report "$name" "$log" "$status" "$((SECONDS - begin))"
}
detail_of() { :; }

# report <name> <log> <exit status> <seconds>: the line of the summary, and a failure's last lines. "not run: why" as a
# detail is a result, too.
report() {
  local result=ok detail
  detail=$(detail_of "$2" || true)
  if (($3 != 0)); then
    result=FAILED
    failures=$((failures + 1))
    tail -n 40 "$2"
  elif [[ $detail == "not run: "* ]]; then
    result="not run" detail=${detail#not run: }
  fi
  summary+=("$1|$result|$4|$detail")
}

configure_and_build() {
  local launcher=()
  command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  # Google Benchmark, which CPU benchmarks need, is not needed here.
  cmake --preset cuda -B "$build" -DDSV4RT_CUDA_ARCHITECTURES="$arch" -DDSV4RT_BUILD_BENCHMARKS=OFF \
    -DDSV4RT_BUILD_GPU_BENCHMARKS=ON "${launcher[@]}" "${cmake_arguments[@]}" &&
    cmake --build "$build" --parallel "$jobs"
}

# start <log> <command>...: in the background, at_once of them at a time. report_started() waits for it.
start() {
  local log=$1
  shift
  while (($(jobs -pr | wc -l) >= at_once)); do wait -n || true; done
  {
    status=0 begin=$SECONDS
    "$@" >"$log" 2>&1 || status=$?
    echo "$status $((SECONDS - begin))" >"$log.result"
  } &
}

# report_started <name> <log>: precondition: nothing runs any more.
report_started() {
  local status seconds
  read -r status seconds <"$2.result" || { status=1 seconds=0; }
  report "$1" "$2" "$status" "$seconds"
}

# Names of the GPU tests that ctest selects by these arguments.
gpu_test_names() {
  ctest --test-dir "$build" -L '^gpu$' ${tests:+-R "$tests"} "$@" -N | sed -n 's/^ *Test *#[0-9]*: //p'
}

# A ctest of its own: the tests of one take turns at the GPU.
start_gpu_test() {
  echo "== $1"
  start "$logs/test_$1.log" ctest --test-dir "$build" -R "^$1\$" --no-tests=error --output-on-failure
}

gpu_tests() {
  local name alone beside
  alone=$(gpu_test_names -L '^gpu_alone$')
  beside=$(gpu_test_names -LE '^gpu_alone$')
  rm -f "$logs"/test_*
  for name in $alone; do
    start_gpu_test "$name"
    wait
  done
  for name in $beside; do start_gpu_test "$name"; done
  wait
  for name in $alone $beside; do report_started "$name" "$logs/test_$name.log"; done
  [[ -z $alone$beside ]] || return 0
  echo "no GPU test matches --tests '$tests'" >"$logs/test_none.log"
  report "GPU tests" "$logs/test_none.log" 1 0
}

# Four processes share the GPU: their timing differs from that of one alone, and what waits for too little shows.
crowd() {  # <program>
  local processes=() status=0 process
  for _ in 1 2 3 4; do
    "$1" --gtest_repeat=2 &
    processes+=($!)
  done
  for process in "${processes[@]}"; do wait "$process" || status=1; done
  return "$status"
}

sanitize() {  # <log> <tool> <program> <filter>
  local log=$1
  shift
  # A child process ends its own context on purpose: those tests are not in the list.
  local options=(--tool "$1" --error-exitcode 9 --print-limit 20) status=0
  [[ $1 == memcheck ]] && options+=(--leak-check no)
  timeout --kill-after=10 "$limit" compute-sanitizer "${options[@]}" "$2" --gtest_filter="$3" || status=$?
  ((status != 124 && status != 137)) || echo "ended after $limit s, the time limit"
  if ((status == 0)) && grep -q "Running 0 tests" "$log"; then
    echo "no test matches $3"
    status=1
  fi
  return "$status"
}

# The entries of `sanitized`, at_once at a time. A log has the number of its entry: some differ in their filter alone.
sanitize_all() {
  local i tool name filter log program ran=0
  rm -f "$logs"/sanitize_*
  for i in "${!sanitized[@]}"; do
    read -r tool name filter <<<"${sanitized[i]}"
    [[ ,$tools, == *",$tool,"* && (-z $tests || $name =~ $tests) ]] || continue
    echo "== $tool $name $filter"
    log=$logs/sanitize_$i.log
    program=$(find "$build/tests" -type f -name "$name" -perm -u+x)
    start "$log" sanitize "$log" "$tool" "$program" "$filter"
  done
  wait
  for i in "${!sanitized[@]}"; do
    log=$logs/sanitize_$i.log
    [[ -f $log ]] || continue
    ran=$((ran + 1))
    read -r tool name filter <<<"${sanitized[i]}"
    report_started "$tool $name" "$log"
  done
  ((ran > 0)) && return
  log=$logs/sanitize_none.log
  echo "no test matches --tests '$tests' --tools '$tools'" >"$log"
  if has_part test; then summary+=("sanitize|not run|0|$(<"$log")"); else report sanitize "$log" 1 0; fi
}

if has_part build; then run_logged build configure_and_build; fi
if [[ ! -d $build/tests ]] && ((failures == 0)); then
  echo "run.sh: $build holds no build; run the part 'build' first" >&2
  exit 1
fi

# Random weights of V4-Flash's shape, once a build folder; a checkpoint that was given stays as it is.
make_checkpoint() {
  [[ -z $checkpoint ]] || return 0
  checkpoint=$logs/flash
  [[ -e $checkpoint/config.json ]] ||
    run_logged "make checkpoint" "$dsv4rt" gen-checkpoint --config configs/deepseek-v4-flash.json --out "$checkpoint"
  [[ -e $checkpoint/config.json ]]
}

# Prints where cuobjdump is: on PATH, or beside the compiler of the build.
find_cuobjdump() {
  local compiler
  compiler=$(grep -s '^CMAKE_CUDA_COMPILER:' "$build/CMakeCache.txt" || true)
  compiler=${compiler#*=}
  PATH=$PATH${compiler:+:${compiler%/*}} command -v cuobjdump
}

# What the part `operands` misses, if anything.
operands_lack() {
  command -v python3 >/dev/null || { echo "python3 not found"; return; }
  [[ -n $cuobjdump ]] || { echo "cuobjdump not found; it comes with the CUDA toolkit"; return; }
  [[ ,${arch//;/,} == *,90a* ]] || echo "no sm_90a code in --arch $arch"
}

if has_part operands && ((failures == 0)); then
  cuobjdump=$(find_cuobjdump || true)
  lack=$(operands_lack)
  if [[ -n $lack ]]; then
    echo "run.sh: the machine code is not checked: $lack" >&2
    summary+=("machine code|not run|0|$lack")
  else
    detail_of() { sed -n 's/^check_[a-z_]*\.py: //p' "$1" | paste -sd ';'; }
    run_logged "machine code" scripts/gpu/check_machine_code.sh --cuobjdump "$cuobjdump" "$dsv4rt"
  fi
fi

if has_part test && ((failures == 0)); then
  detail_of() { ! grep -q "(Skipped)" "$1" || echo "not run: it needs more GPUs than this machine has"; }
  gpu_tests
  detail_of() { :; }
  for name in "${crowded[@]}"; do
    [[ -z $tests || $name =~ $tests ]] || continue
    program=$(find "$build/tests" -type f -name "$name" -perm -u+x)
    run_logged "four at once: $name" crowd "$program"
  done
fi

if has_part sanitize && ((failures == 0)); then
  if ! command -v compute-sanitizer >/dev/null; then
    summary+=("compute-sanitizer|FAILED|0|not found; it comes with the CUDA toolkit")
    failures=$((failures + 1))
  else
    detail_of() {
      grep -E "ERROR SUMMARY|RACECHECK SUMMARY|the time limit|no test matches" "$1" | sed 's/=* *//' | tail -n 1
    }
    sanitize_all
  fi
fi

if has_part bench && ((failures == 0)); then
  detail_of() { :; }
  rm -f "$logs"/bench_*_gpu.log "$logs"/whole_*.json "$logs"/times.*  # tables are of this run alone
  while IFS= read -r program; do
    name=$(basename "$program")
    [[ -z $bench || $name =~ $bench ]] || continue
    read -ra arguments <<<"${shapes[$name]:-}"
    run_logged "$name" "$program" "${arguments[@]}"
    cat "$logs/$name.log"
  done < <(find "$build/tools/bench/gpu" -maxdepth 1 -type f -name 'bench_*' -perm -u+x | sort)

  # Floors of whole steps are by the bandwidth that the programs above measured, if any ran.
  bandwidth=$(grep -hoE '^memory: [0-9]+ GB/s' "$logs"/bench_*_gpu.log 2>/dev/null | grep -oE '[0-9]+' | sort -n |
    tail -n 1 || true)
  for name in "${whole[@]}"; do
    [[ -z $bench || $name =~ $bench ]] || continue
    make_checkpoint || break
    read -ra arguments <<<"${shapes[$name]} ${bandwidth:+--bandwidth $bandwidth}"
    run_logged "$name" "$dsv4rt" bench --backend cuda --checkpoint "$checkpoint" "${arguments[@]}" \
      --json "$logs/$name.json" --force
    cat "$logs/$name.log"
  done

  detail_of() { grep -h "cases lost\|were not measured\|bench_tables.py:" "$1"; }
  run_logged times python3 scripts/gpu/bench_tables.py "$logs" --json "$logs/times.json" \
    --markdown "$logs/times.md" ${baseline:+--baseline "$baseline"}
  [[ ! -f $logs/times.md ]] || cat "$logs/times.md"
fi

echo
printf '%-32s %-8s %7s  %s\n' what result seconds detail
for line in "${summary[@]}"; do
  IFS='|' read -r name result seconds detail <<<"$line"
  printf '%-32s %-8s %7s  %s\n' "$name" "$result" "$seconds" "$detail"
done
((failures == 0)) || { echo "$failures failed; logs are in $logs"; exit 1; }
