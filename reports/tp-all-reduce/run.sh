#!/usr/bin/env bash
# Makes this report: the all-reduces of a GPT-3 layer over TP and fabrics. Run from anywhere, with shardsim installed.
set -euo pipefail
cd "$(dirname "$0")"

# GPT-3: 2,048 tokens x 12,288 x 2 bytes = 48 MiB; two all-reduces forward, two backward.
shardsim collective all_reduce "48 MiB" --repeat 4 --dtype fp16 --ranks 2,4,8,16,32,64 --data . \
  --cluster dgx-2h,dgx-a100,dgx-h100,dgx-b200,gb200-nvl72,nvlink900-ib100,ib100-only \
  --csv all-reduce.csv --plot all-reduce.png --plot all-reduce.svg >all-reduce.txt

python3 layer.py
