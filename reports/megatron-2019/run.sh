#!/usr/bin/env bash
# Makes this report: weak scaling of Megatron-LM 2019, predicted and published. Run from anywhere, with shardsim installed.
set -euo pipefail
cd "$(dirname "$0")"
models=megatron-1.2b,megatron-2.5b,megatron-4.2b,megatron-8.3b
common=(--model "$models" --cluster dgx-2h --framework megatron-2019 --grow tp --weak --micro-batch 8 --seq 1024
  --measured ../../workloads/measured/megatron-2019.csv)

shardsim scale "${common[@]}" --gpus 1,2,4,8 --global-batch 8 \
  --csv tensor-parallel.csv --plot tensor-parallel.png --plot tensor-parallel.svg >tensor-parallel.txt

# Efficiency with data parallelism is relative to the same single GPU.
single=$(shardsim simulate --model megatron-1.2b --cluster dgx-2h --framework megatron-2019 --gpus 1 --micro-batch 8 \
  --global-batch 8 --seq 1024 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["tflops_per_gpu"])')
shardsim scale "${common[@]}" --gpus 64,128,256,512 --dp 64 --global-batch 512 --baseline-tflops "$single" \
  --csv data-parallel.csv --plot data-parallel.png --plot data-parallel.svg >data-parallel.txt
