#!/usr/bin/env bash
# Makes this report. Run from anywhere, with shardsim installed.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
cd "$(dirname "$0")"
run=../../workloads/runs/llama-3-405b-131k.yaml
shardsim topology traffic "$run" --plot layout.svg >traffic.txt
shardsim topology traffic "$run" --plot layout.png >traffic.txt
shardsim simulate "$run" --engine listing >iteration.txt
python3 quote.py
