#!/usr/bin/env bash
# Makes this report: the ten runs of Narayanan et al. 2021, Table 1. Run from anywhere, with shardsim installed.
set -euo pipefail
cd "$(dirname "$0")"
shardsim validate runs ../../workloads/measured/narayanan-2021-table1.csv --out rows.csv --plot scatter.png >result.txt
