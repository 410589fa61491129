#!/usr/bin/env bash
# Makes this report: who talks to whom in TP4 x PP2 x DP4. Run from anywhere, with shardsim installed.
set -euo pipefail
cd "$(dirname "$0")"
for nvlink in 300 900; do
  shardsim topology show "nvlink$nvlink-ib100" --gpus 32 --tp 4 --pp 2 >"nvlink$nvlink.txt"
  shardsim simulate ../../workloads/runs/seed-layout.yaml --cluster "nvlink$nvlink-ib100" >"nvlink$nvlink-iteration.txt"
done
shardsim topology draw nvlink900-ib100 --nodes 4 --out fabric.png
