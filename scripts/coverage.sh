#!/usr/bin/env bash
# Line coverage of the CPU tests: scripts/coverage.sh [<ctest argument>...]
# Fails when a folder named below is covered less than it must be. Needs gcovr (scripts/setup.sh --dev).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

folders=(src/layout src/checkpoint src/cache)
required_percent=95
if (($# == 0)); then
  set -- -L '^(unit|property)$'
fi

command -v gcovr >/dev/null || { echo "$0: gcovr is missing: scripts/setup.sh --dev" >&2; exit 1; }
build_preset coverage
find build/coverage -name '*.gcda' -delete
ctest --preset coverage --parallel "$(nproc)" "$@"

filters=()
for folder in "${folders[@]}"; do
  filters+=(--filter "$folder/")
done
gcovr --root . "${filters[@]}" --exclude-unreachable-branches --csv build/coverage/coverage.csv \
  --html-details build/coverage/coverage.html build/coverage
awk -F, -v folders="${folders[*]}" -v required="$required_percent" '
  NR > 1 { split($1, part, "/"); folder = part[1] "/" part[2]; lines[folder] += $2; covered[folder] += $3
           printf "%6.1f %%  %s\n", $2 ? 100 * $3 / $2 : 100, $1 }
  END {
    count = split(folders, wanted, " ")
    print "line coverage by folder:"
    for (i = 1; i <= count; ++i) {
      percent = lines[wanted[i]] ? 100 * covered[wanted[i]] / lines[wanted[i]] : 0
      bad = percent < required
      failed += bad
      printf "%6.1f %%  %s (%d of %d lines)%s\n", percent, wanted[i], covered[wanted[i]], lines[wanted[i]],
             bad ? "  below " required " %" : ""
    }
    exit failed > 0
  }' build/coverage/coverage.csv
