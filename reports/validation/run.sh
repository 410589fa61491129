#!/usr/bin/env bash
# Makes this report. Without arguments, the part about the published runs that come with shardsim; with the folder of the
# measured tables (measured_runs.csv and the two of vTrain), everything, in about half an hour.
set -euo pipefail
cd "$(dirname "$0")"
shardsim validate published --rows >published.txt
if [ $# -gt 0 ]; then
  mkdir -p measured
  work=$(mktemp -d)
  trap 'rm -r "$work"' EXIT
  tables=("$1/measured_runs.csv" "$1/vtrain_single_node_a100.csv" "$1/vtrain_multi_node_a100.csv")
  shardsim calibrate stack "${tables[@]}" ../../workloads/measured/narayanan-2021-table1.csv \
    --recipes ../../topologies/profiles/stack-recipes.yaml --to "$work" --errors "$work/held-out.csv" >measured/stacks.txt
  shardsim validate runs "${tables[@]}" --workers 2 --errors "$work/held-out.csv" --bands "$work/bands.yaml" \
    --plot measured/scatter.png >measured/runs.txt
  python3 study.py "$work/held-out.csv" "${tables[@]}"
fi
