#!/usr/bin/env bash
# Makes this report. Run from anywhere, with shardsim installed.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
cd "$(dirname "$0")"
# What one layer gathers under sequence parallelism: 4,096 tokens of 16,384 numbers in two bytes.
shardsim collective all_gather "128 MiB" --cluster dgx-h100,gb200-nvl72 --ranks 4,8,16,32,64 >nodes.txt
shardsim collective all_gather "128 MiB" --cluster dgx-h100 --ranks 8,16,32 --per-node 4 >straddling.txt
python3 layouts.py
python3 tables.py
python3 quote.py
