#!/usr/bin/env bash
# Builds the command line and runs a prefill and decode trace through a small FP8 checkpoint with the
# released tensor layout, comparing every layer with recorded outputs: scripts/quickstart.sh [--no-setup]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

setup_unless_told "$@"
build_preset release dsv4rt_cli
golden=tests/golden/tiny-fp8
set -x
build/release/tools/dsv4rt/dsv4rt run --checkpoint "$golden" --trace "$golden/trace.safetensors" --check
