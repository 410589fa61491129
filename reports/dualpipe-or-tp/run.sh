#!/usr/bin/env bash
# Makes this report. Run from anywhere, with shardsim installed.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
cd "$(dirname "$0")"

python3 study.py
python3 moe.py
python3 tables.py
python3 plot.py
python3 quote.py
