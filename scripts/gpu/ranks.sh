#!/usr/bin/env bash
# Everything that takes several GPUs, as one command for whoever has such a machine: the tests of two devices and of
# ranks over NCCL; golden traces with tensor and context parallelism, whose caches have the bytes of one GPU; times of
# decode steps, prefills and independent engines beside those of one GPU, with the sums of ranks; ranks that are killed;
# memcheck over a step of ranks. Ends with a table of what is asked for and what was found
# (scripts/gpu/ranks_tables.py); fails if anything failed or missed what is asked for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() {
  cat <<'END'
scripts/gpu/ranks.sh [<option>...] [-- <cmake argument>...]
  --ranks N          GPUs, a rank on each: 2 (default), 4 or 8
  --parts LIST       of build,test,check,speed,lost,sanitize; default all of them
  --arch LIST        GPU code to build, as CMake names it; default 90a-real (H100, H200)
  --build-dir DIR    default build/cuda
  --checkpoint DIR   speed with this checkpoint; default: one of V4-Flash's shape with random weights is made (6 GB), at
                     <build-dir>/ranks-run/flash
  --prompt N         tokens of the prompt that ranks share; default 65536
  --trials N         ranks that are killed; default 20
  --limit SECONDS    most time of a program under compute-sanitizer; default 900
Needs mpirun (Open MPI), libnccl.so.2 and as many GPUs as ranks; with fewer it ends with 3 and runs nothing. Packages:
scripts/setup.sh. Logs and table: <build-dir>/ranks-run.
END
}

fail_usage() {
  echo "ranks.sh: $1" >&2
  usage >&2
  exit 2
}

ranks=2
parts=build,test,check,speed,lost,sanitize
arch=90a-real
build=build/cuda
checkpoint=
prompt=65536
trials=20
limit=900
cmake_arguments=()
while (($# > 0)); do
  case "$1" in
    --help | -h) usage; exit 0 ;;
    --) cmake_arguments=("${@:2}"); break ;;
    --ranks | --parts | --arch | --build-dir | --checkpoint | --prompt | --trials | --limit)
      (($# > 1)) || fail_usage "$1 needs a value"
      case "$1" in
        --ranks) [[ $2 =~ ^(2|4|8)$ ]] || fail_usage "--ranks takes 2, 4 or 8, not '$2'"; ranks=$2 ;;
        --parts) parts=$2 ;;
        --arch) arch=$2 ;;
        --build-dir) build=$2 ;;
        --checkpoint) checkpoint=$2 ;;
        --prompt | --trials | --limit)
          [[ $2 =~ ^[1-9][0-9]*$ ]] || fail_usage "$1 takes a number above 0, not '$2'"
          printf -v "${1#--}" %s "$2" ;;
      esac
      shift 2 ;;
    *) fail_usage "unknown option $1" ;;
  esac
done
for name in ${parts//,/ }; do
  [[ ,build,test,check,speed,lost,sanitize, == *",$name,"* ]] ||
    fail_usage "--parts: '$name' is none of build,test,check,speed,lost,sanitize"
done
has_part() { [[ ,$parts, == *",$1,"* ]]; }

refuse() {
  echo "ranks.sh: $1; nothing was run" >&2
  exit 3
}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)
((gpus >= ranks)) || refuse "$ranks ranks need $ranks GPUs, and this machine shows $gpus"
command -v mpirun >/dev/null || refuse "mpirun was not found (Debian: openmpi-bin)"
# No pipe to grep -q: under pipefail it fails whenever grep has left before ldconfig wrote its last line.
[[ $(ldconfig -p) == *libnccl.so.2* || -n ${LD_LIBRARY_PATH:-} ]] ||
  refuse "libnccl.so.2 was not found (Debian: libnccl2)"
export DSV4RT_REQUIRE_GPU=$gpus

dsv4rt=$build/tools/dsv4rt/dsv4rt
logs=$build/ranks-run
mkdir -p "$logs"
# Root may start ranks; ranks share processors; one that is killed leaves the others alone.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
mpi=(mpirun --bind-to none)
on_ranks() { "${mpi[@]}" -n "$ranks" "$@"; }

# run_logged <name> <command>...: output to <logs>/<name>.log, its exit status to <logs>/<name>.status, which the table
# reads. What failed does not keep the rest from running.
run_logged() {
  local name=$1 status=0
  shift
  echo "== $name"
  "$@" >"$logs/$name.log" 2>&1 || status=$?
  echo "$status" >"$logs/$name.status"
  ((status == 0)) || { echo "   failed with $status:"; tail -n 40 "$logs/$name.log"; }
  return 0
}

build_all() {
  scripts/gpu/run.sh --parts build --arch "$arch" --build-dir "$build" -- "${cmake_arguments[@]}"
}
if has_part build; then
  build_all || { echo "ranks.sh: the build failed" >&2; exit 1; }
fi
[[ -x $dsv4rt ]] || { echo "ranks.sh: $build holds no build; run the part 'build' first" >&2; exit 1; }
# Results are of this run alone.
rm -f "$logs"/*.status "$logs"/*.json "$logs"/table.md

if has_part test; then
  run_logged gpu_tests ctest --test-dir "$build" --no-tests=error --output-on-failure \
    -R '^(two_devices_gpu_test|nccl_gpu_test|tensor_parallel_gpu_test|context_parallel_gpu_test)$'
  run_logged mpi_tests ctest --test-dir "$build" --no-tests=error --output-on-failure -L '^mpi$'
fi

# Golden traces: rank 0 compares with the reference, all ranks with each other, the table with one GPU.
if has_part check; then
  for model in tiny-fp8 tiny-bf16; do
    golden=(run --backend cuda --checkpoint "tests/golden/$model" --trace "tests/golden/$model/trace.safetensors"
      --check --digest --force)
    run_logged "${model}_one" "$dsv4rt" "${golden[@]}" --json "$logs/${model}_one.json"
    run_logged "${model}_cp" on_ranks "$dsv4rt" "${golden[@]}" --cp "$ranks" --json "$logs/${model}_cp.json"
    # Two groups of output heads; in FP8 a rank's columns of wo_b would share scales with the other's.
    [[ $ranks != 2 || $model != tiny-bf16 ]] ||
      run_logged "${model}_tp" on_ranks "$dsv4rt" "${golden[@]}" --tp "$ranks" --json "$logs/${model}_tp.json"
  done
fi

if has_part speed; then
  if [[ -z $checkpoint ]]; then
    checkpoint=$logs/flash
    [[ -e $checkpoint/config.json ]] ||
      run_logged make_checkpoint "$dsv4rt" gen-checkpoint --config configs/deepseek-v4-flash.json --out "$checkpoint"
  fi
  bench=(bench --backend cuda --checkpoint "$checkpoint" --force)
  steps=(--whole-step 1x8192,32x32768)
  # One GPU before and after: what drifts shows as a difference.
  run_logged step_one "$dsv4rt" "${bench[@]}" "${steps[@]}" --json "$logs/step_one.json"
  run_logged step_tp on_ranks "$dsv4rt" "${bench[@]}" "${steps[@]}" --tp "$ranks" --json "$logs/step_tp.json"
  run_logged step_one_again "$dsv4rt" "${bench[@]}" "${steps[@]}" --json "$logs/step_one_again.json"
  run_logged prefill_one "$dsv4rt" "${bench[@]}" --whole-prefill "$prompt" --json "$logs/prefill_one.json"
  run_logged prefill_cp on_ranks "$dsv4rt" "${bench[@]}" --whole-prefill "$prompt" --cp "$ranks" --rank-deadline 60 \
    --json "$logs/prefill_cp.json"
  run_logged engines "$dsv4rt" "${bench[@]}" "${steps[@]}" --devices "$(seq -s, 0 $((ranks - 1)))" \
    --json "$logs/engines.json"
fi

if has_part lost; then
  run_logged lost python3 -B tests/mpi/lost_rank_trials.py "$build/tests/mpi/lost_rank_trial" --trials "$trials" \
    --ranks "$ranks" --backend cuda -- "${mpi[@]}" --enable-recovery -n
fi

if has_part sanitize; then
  tiny=tests/golden/tiny-bf16
  # NCCL asks for the attributes of kernels that it may lack for the device: failing calls are no finding, and this
  # project's own are checked where they are made.
  run_logged memcheck on_ranks timeout --kill-after=10 "$limit" compute-sanitizer --tool memcheck --leak-check no \
    --report-api-errors no --error-exitcode 9 --print-limit 20 "$dsv4rt" run --backend cuda --checkpoint "$tiny" \
    --trace "$tiny/trace.safetensors" --check --digest "$( ((ranks > 2)) && echo --cp || echo --tp)" "$ranks" \
    --rank-deadline 600
fi

status=0
python3 -B scripts/gpu/ranks_tables.py "$logs" --ranks "$ranks" --parts "$parts" --trials "$trials" \
  --markdown "$logs/table.md" || status=$?
((status == 0)) || { echo "logs are in $logs"; exit 1; }
