# shellcheck shell=bash
# Sourced by the other scripts: goes to the repository's root and offers `build_preset`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -z ${CMAKE_CXX_COMPILER_LAUNCHER:-} ]] && command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi

# Runs scripts/setup.sh with `setup_flags` unless the first argument is --no-setup; leaves the rest in `args`.
args=()
setup_flags=()
setup_unless_told() {
  args=("$@")
  if [[ ${1:-} == --no-setup ]]; then
    args=("${@:2}")
  else
    scripts/setup.sh "${setup_flags[@]}"
  fi
}

# build_preset <preset> [<target>...]: configures and builds, every target without any named.
build_preset() {
  local preset=$1
  shift
  cmake --preset "$preset"
  cmake --build --preset "$preset" ${1:+--target "$@"}
}
