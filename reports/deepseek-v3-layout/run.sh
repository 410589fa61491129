#!/usr/bin/env bash
# Makes this report. Run from anywhere, with shardsim installed.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
cd "$(dirname "$0")"
run=../../workloads/runs/deepseek-v3.yaml
shardsim topology traffic "$run" --plot layout.svg >traffic.txt
shardsim topology traffic "$run" --plot layout.png >traffic.txt
shardsim simulate "$run" --engine listing >iteration.txt
python3 step.py
python3 quote.py
