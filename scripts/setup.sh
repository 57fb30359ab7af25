#!/usr/bin/env bash
# Installs the Debian packages that the build and the tests need:
# scripts/setup.sh [--browser] [--dev] [--fuzz] [--python].
# With --browser also Chromium, for the tests that look at pages; with --dev the tools for formatting, static analysis
# and coverage, with --fuzz those for fuzzing, with --python what makes virtual environments, for the Python package's
# tests and the disassembler from PyPI. Does nothing, quickly, when all are there.
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache pkg-config python3 git
  libspdlog-dev nlohmann-json3-dev libssl-dev libcli11-dev
  libgtest-dev librapidcheck-dev libbenchmark-dev abigail-tools
  libopenmpi-dev openmpi-bin
)
for option in "$@"; do
  case "$option" in
    --browser) packages+=(chromium) ;;
    --dev) packages+=(gcovr clang-format clang-tidy) ;;
    --fuzz) packages+=(clang llvm libclang-rt-dev) ;;
    --python) packages+=(python3-venv) ;;
    *) echo "usage: $0 [--browser] [--dev] [--fuzz] [--python]" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "$0: this is not a Debian system; install the equivalents of: ${packages[*]}" >&2
  echo "$0: the other scripts skip this step with --no-setup" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  echo "setup: everything is installed"
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || { echo "$0: run as root, or install sudo; missing: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
