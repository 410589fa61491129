#!/usr/bin/env bash
# Makes this report. Run from anywhere, with shardsim installed.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
cd "$(dirname "$0")"
clusters=leaf4-1,leaf4-2,leaf4-4,leaf4-7,leaf1-1,leaf1-2,leaf1-4,leaf1-7
# One rank a node, as in a data-parallel group of TP 8; whole nodes, as in an expert-parallel group.
for size in "16 MiB" "1 GiB"; do
    shardsim collective all_reduce "$size" --cluster $clusters --ranks 8,16,32 --per-node 1 --data . \
        --csv "all-reduce-${size/ /-}.csv" >/dev/null
    shardsim collective all_to_all "$size" --cluster $clusters --ranks 32,64,128 --data . \
        --csv "all-to-all-${size/ /-}.csv" >/dev/null
done
python3 iterations.py
python3 tables.py
python3 plot.py
python3 quote.py
