#!/usr/bin/env bash
# Long runs that compare everything with a reference and watch memory:
#   scripts/soak.sh [--no-setup] [slice|night]
# slice (default): what CI can afford, about a minute. night: 10^7 operations of 10^4 seeds on the cache manager with
# its prefix cache, 10^5 requests through an engine, every fuzz target for 30 minutes on a core.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

setup_unless_told "$@"
operations=1000000 requests=2000
case "${args[0]:-slice}" in
  slice) ;;
  night) operations=10000000 requests=100000 ;;
  *) echo "usage: $0 [--no-setup] [slice|night]" >&2; exit 2 ;;
esac
build_preset release prefix_state_machine_test engine_replay_soak_test

echo "== $operations operations on the cache manager"
DSV4RT_PREFIX_OPERATIONS=$operations build/release/tests/property/prefix_state_machine_test
echo "== $requests requests through an engine"
DSV4RT_REPLAY_SOAK_REQUESTS=$requests build/release/tests/unit/replay/engine_replay_soak_test
if [[ ${args[0]:-slice} == night ]]; then
  echo "== fuzz targets"
  scripts/fuzz.sh 30
fi
