#!/usr/bin/env bash
# Makes this report. Run from anywhere, with shardsim installed.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
cd "$(dirname "$0")"

python3 layers.py
python3 published.py
python3 memory.py
python3 tables.py
python3 plot.py
python3 quote.py
