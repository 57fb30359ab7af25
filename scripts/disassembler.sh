#!/usr/bin/env bash
# Prints the folder that has cuobjdump and nvdisasm, which not every installation of the CUDA toolkit brings: of those
# on PATH or beside nvcc, otherwise one in ${XDG_CACHE_HOME:-~/.cache} that is filled from PyPI. What looks through
# machine code needs them (scripts/gpu/check_machine_code.sh).
set -euo pipefail

folders=$PATH
nvcc=$(command -v nvcc || true)
for toolkit in "${CUDA_HOME-}" "${CUDA_PATH-}" "${nvcc:+${nvcc%/bin/nvcc}}"; do
  [[ -n $toolkit ]] && folders+=:$toolkit/bin
done
if cuobjdump=$(PATH=$folders command -v cuobjdump) && PATH=$folders command -v nvdisasm >/dev/null; then
  dirname "$cuobjdump"
  exit 0
fi

environment="${XDG_CACHE_HOME:-$HOME/.cache}/dsv4rt/disassembler"
if [[ ! -e $environment/complete ]]; then
  "${PYTHON:-python3}" -m venv "$environment"
  "$environment/bin/pip" install --quiet "nvidia-cuda-cuobjdump>=13" "nvidia-cuda-nvdisasm>=13" >&2
  touch "$environment/complete"
fi
cuobjdump=$(find "$environment" -name cuobjdump -type f -perm -u+x -print -quit)
[[ -n $cuobjdump ]] || { echo "disassembler.sh: $environment has no cuobjdump; remove it and try again" >&2; exit 1; }
dirname "$cuobjdump"
