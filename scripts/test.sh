#!/usr/bin/env bash
# Builds the release preset and runs its tests: scripts/test.sh [--no-setup] [<ctest argument>...]
# For example `scripts/test.sh --no-setup -L unit` or `scripts/test.sh -R cache`.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

setup_flags=(--browser)
setup_unless_told "$@"
build_preset release
ctest --preset release --parallel "$(nproc)" "${args[@]}"
