#!/usr/bin/env bash
# Installs the Python package into a virtual environment of its own and runs its tests:
# scripts/test_python.sh [--library FILE] [--pinned] [--environment-only | <pytest argument>...].
#   --library FILE  a libdsv4rt.so of this tree that is built already; without it the library is built
#   --environment-only  just makes the environment, which a later run finds
#   --pinned        what it takes from PyPI in the versions of python/tests/pinned.txt, not in the newest ones
# The environment (torch, transformers and others from PyPI) is kept in ${XDG_CACHE_HOME:-~/.cache}; only making it
# needs the network. A test that is skipped counts as failed. PYTHON names another interpreter than python3, which gets
# an environment of its own: 3.10 and newer are supported.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

library=
pinned=
environment_only=0
while (($# > 0)); do
  case "$1" in
    --library)
      library=$(realpath -e -- "${2:-}") || { echo "scripts/test_python.sh: --library: no file '${2:-}'" >&2; exit 2; }
      shift 2 ;;
    --pinned) pinned=-pinned; shift ;;
    --environment-only) environment_only=1; shift ;;
    *) break ;;
  esac
done

python="${PYTHON:-python3}"
version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
environment="${XDG_CACHE_HOME:-$HOME/.cache}/dsv4rt/python-$version$pinned"
packages=(scikit-build-core ninja "cffi>=1.15" "numpy>=1.24" "ml_dtypes>=0.3" "safetensors>=0.4" "torch>=2.6"
          "transformers>=5.20" "pytest>=7" "pyzmq>=25" "msgpack>=1.0" "prometheus-client>=0.20")
[[ -z $pinned ]] || mapfile -t packages < <(grep -v '^#' python/tests/pinned.txt)
if [[ ! -e $environment/complete || $(<"$environment/complete") != "${packages[*]}" ]]; then
  "$python" -m venv "$environment"
  # Not all of torch is imported: what is gets compiled then.
  "$environment/bin/pip" install --quiet --no-compile --upgrade pip "${packages[@]}"
  printf %s "${packages[*]}" >"$environment/complete"
fi
((environment_only == 0)) || exit 0
# The compiler that CMake takes by itself, so that compiler caches know it from other builds.
export CXX="${CXX:-c++}" CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"
"$environment/bin/pip" install --quiet --no-build-isolation --no-deps \
  "--config-settings=cmake.define.DSV4RT_LIBRARY=$library" ./python

cd python
report="$(mktemp)"
trap 'rm -f "$report"' EXIT
set +e
"$environment/bin/python" -m pytest --color=no -p no:cacheprovider -ra "$@" 2>&1 | tee "$report"
status=${PIPESTATUS[0]}
set -e
if grep -qE '^=* ?.*[0-9]+ (skipped|xfailed)' <(tail -n 1 "$report"); then
  echo "scripts/test_python.sh: tests were left out" >&2
  exit 1
fi
exit "$status"
