#!/usr/bin/env bash
# Makes this report. Run from anywhere, with shardsim installed. A folder with measured slices, where one is given
# (see README.md), is compared with the model in check.txt; without it check.txt stays as it is.
set -euo pipefail
measured=$(realpath "${1:-.}")
cd "$(dirname "$0")"

python3 slices.py
python3 tables.py
if [ $# -gt 0 ]; then python3 check.py "$measured" >check.txt; fi
python3 plot.py
python3 quote.py
