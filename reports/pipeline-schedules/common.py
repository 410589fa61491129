"""The run that all schedules share, and what each adds to it."""

from __future__ import annotations

RUN = {
    "model": "llama-3-405b",
    "cluster": "dgx-h100",
    "framework": "megatron-core",
    "gpus": 1024,
    "tp": 8,
    "pp": 16,
    "micro_batch": 1,
    "global_batch": 256,
    "seq": 8192,
    # 126 layers, the embedding and the loss make 128 places: that splits evenly over 16, 32 and 64 virtual stages.
    "embedding_as_layer": True,
    "loss_as_layer": True,
}
SCHEDULES = {
    "gpipe": {"schedule": "gpipe"},
    "1f1b": {"schedule": "1f1b"},
    "interleaved, v = 4": {"schedule": "interleaved", "vpp": 4},
    "zb-h1": {"schedule": "zb-h1"},
    "zb-h2": {"schedule": "zb-h2"},
    "zb-v": {"schedule": "zb-v"},
    "v-half": {"schedule": "v-half"},
    "v-min": {"schedule": "v-min"},
    "dualpipe": {"schedule": "dualpipe"},
    "dualpipev": {"schedule": "dualpipev"},
}
