"""What is asked: models, batches, links, and every value that a layout may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A model on so many GPUs with a global batch [sequences]."""

    model: str
    gpus: int
    global_batch: int
    stages: tuple[int, ...]
    ends_as_layers: bool
    """Whether embedding and loss count as layers, so that all split evenly over a pipeline."""

    @property
    def name(self) -> str:
        """As tables call it."""
        return f"{self.model}, {self.gpus:,} GPUs, {self.global_batch:,} sequences"


SEQ = 8192
CASES = (
    Case("llama-3-70b", 512, 512, (1, 2, 4, 8, 16), ends_as_layers=False),
    Case("llama-3-70b", 512, 128, (1, 2, 4, 8, 16), ends_as_layers=False),
    # 126 layers, the embedding and the loss make 128 places.
    Case("llama-3-405b", 2048, 512, (1, 2, 4, 8, 16, 32), ends_as_layers=True),
)
CLUSTERS = {"nvlink300-ib100": 300, "nvlink900-ib100": 900}
"""NVLink in GB/s, both directions together."""

TENSOR = (1, 2, 4, 8)
CONTEXT = (1, 2, 4, 8)
ZERO = (0, 1, 2, 3)
MICRO = (1,)
RECOMPUTE = ("none", "selective", "full")
SELECTIVE = ("mlp",)
"""What selective recompute repeats: fused attention leaves nothing else to save."""
SCHEDULES = (
    ("1f1b", 1),
    ("interleaved", 2),
    ("interleaved", 4),
    ("interleaved", 5),
    ("zb-h1", 1),
    ("zb-v", 2),
    ("dualpipe", 2),
    ("dualpipev", 2),
)
"""Schedules, and chunks that a stage holds."""

PAIRED = ("dualpipe", "dualpipev")
QUESTIONS = ("no TP, any schedule", "no TP, DualPipe or DualPipeV", "TP, any schedule", "TP, DualPipe or DualPipeV")
