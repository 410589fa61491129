"""A prediction made by hand: two stages, one of them worse, with awkward numbers."""

from __future__ import annotations

import numpy as np
import pytest

from shardsim.values.hardware import (
    Cluster,
    Device,
    FabricConstants,
    Link,
    LinkConstants,
    Profile,
)
from shardsim.values.kernels import AttentionConstants, GemmConstants, KernelConstants, MemoryBoundConstants
from shardsim.values.provenance import Provenance
from shardsim.values.results import (
    CostNote,
    Execution,
    MemoryProfile,
    Prediction,
    StageAccount,
    Timeline,
    WaterfallStep,
)
from shardsim.values.training import Batch, Framework, Layout, Model, TrainingRun

GIB = 2.0**30
DATASHEET = Provenance("datasheet", "DGX A100 data sheet")
ASSUMED = Provenance("assumed", "no measurement of this link was found")
FITTED = Provenance("fitted", "kernel measurements of 2021", error=0.043, points=430)


@pytest.fixture
def run() -> TrainingRun:
    device = Device(
        name="a100-sxm-80gb",
        memory_bytes=80 * GIB,
        memory_bandwidth=2.0e12,
        peak_flops={"bf16": 312e12},
        multiprocessors=108,
        power=400.0,
        compute_profile="a100",
        source="data sheet",
    )
    cluster = Cluster(
        name="dgx-a100",
        device=device,
        gpus_per_node=8,
        gpus_per_domain=8,
        nvlink=Link("nvlink", 300e9, 1e-6, "data sheet"),
        pcie=Link("pcie", 25e9, 1e-6, "data sheet"),
        nic=Link("nic", 25e9, 1e-6, "data sheet"),
        nics_per_node=8,
        nodes_per_leaf=20,
        oversubscription=1.0,
        rail_optimized=True,
        fabric_profile="a100",
        max_gpus=None,
        source="data sheet",
    )
    links = LinkConstants({"default": 0.8}, 5e-6, 1e-6, 0.0, ASSUMED)
    kernels = KernelConstants(
        "a100",
        {"bf16": GemmConstants(0.8, 0.8, 5e-6)},
        AttentionConstants({}, "flash2"),
        MemoryBoundConstants({"default": 0.8}, 3e-6),
    )
    return TrainingRun(
        model=Model(
            "gpt-tiny", 4, 512, 8, 8, 64, 2048, 51200, "gelu", "layernorm", "learned", 1024, True, True, True, "none"
        ),
        cluster=cluster,
        layout=Layout(tp=4, pp=2, dp=4, sp=True, zero=1, recompute="selective"),
        batch=Batch(global_batch=64, micro_batch=2, seq_len=1024),
        framework=Framework(
            "megatron-2021",
            "unfused",
            True,
            True,
            True,
            True,
            True,
            True,
            "never",
            4e7,
            4,
            "bf16",
            "none",
            "bf16",
            0,
            False,
            128,
            False,
            1e9,
            "paper",
        ),
        profile=Profile(kernels, FabricConstants("a100", {"nvlink": links, "nic": links})),
        precision="bf16",
    )


@pytest.fixture
def timeline() -> Timeline:
    labels = (
        ("layers", "compute", "gemm"),
        ("gradients of layers", "compute", "gemm"),
        ("all-reduce", "tp", "tp"),
        ("reduce gradients", "dp", "dp"),
        ("optimizer", "compute", "optimizer"),
    )
    rows = [
        # start, finish, stage, microbatch, chunk, label, kind
        (0.0, 0.75, 0, 0, 0, 0, 0),
        (0.75, 1.0, 0, 0, 0, 2, 0),
        (1.0, 2.0, 0, 1, 0, 0, 0),
        (1.25, 2.25, 1, 0, 0, 0, 0),
        (2.25, 4.25, 1, 0, 0, 1, 1),
        (4.5, 6.5, 0, 0, 0, 1, 1),
        (6.0, 9.0, 0, 0, 0, 3, 1),
        (9.0, 9.5, 0, -1, -1, 4, -1),
    ]
    start, finish, stage, microbatch, chunk, label, kind = (np.array(column) for column in zip(*rows, strict=True))
    return Timeline(start, finish, stage, microbatch, chunk, label, labels, kind)


@pytest.fixture
def prediction(run: TrainingRun, timeline: Timeline) -> Prediction:
    peak, iteration = 312e12, 2.0
    steps = (("kernel efficiency", 0.7), ("tensor parallel", 0.23), ("bubble", 0.07), ("recompute", 0.1 / 3))
    waterfall = tuple(WaterfallStep(name, seconds, peak * seconds / iteration) for name, seconds in steps)
    achieved = peak - sum(step.flops_lost for step in waterfall)
    model_flop = achieved * 32 * iteration
    return Prediction(
        run=run,
        execution=Execution(
            "des",
            iteration,
            (
                StageAccount(0, {"gemm": 1.2, "tp": np.float64(0.5), "bubble": 0.3}, 1e15),
                StageAccount(1, {"gemm": 1.5, "tp": 0.5, "bubble": 0.0}, 2e15),
            ),
            events=1234,
            timeline=timeline,
        ),
        memory=MemoryProfile(
            (
                {"weights": 20 * GIB, "optimizer": 40 * GIB, "activations": 12.5 * GIB, "logits": 0.0},
                {"weights": 20 * GIB, "optimizer": 40 * GIB, "activations": 6.25 * GIB, "logits": 1.0 * GIB},
            ),
            80 * GIB,
        ),
        iteration_s=iteration,
        tokens_per_s=32768.0,
        tokens_per_s_per_gpu=1024.0,
        model_flop=model_flop,
        hardware_flop=model_flop * 1.05,
        flops_per_gpu=achieved,
        peak_flops=peak,
        mfu=achieved / peak,
        hfu=achieved / peak * 1.05,
        bubble_fraction=0.035,
        exposed_s={"tp": 0.23, "pp": 0.0, "dp": 0.05},
        waterfall=waterfall,
        costs=(
            CostNote("gemm efficiency, bf16", "80 %", FITTED),
            CostNote("nvlink bandwidth", "300 GB/s", DATASHEET),
            CostNote("nvlink all-reduce efficiency", "80 %", ASSUMED),
            CostNote("nvlink latency", "5 us", ASSUMED),
        ),
        warnings=("no error band: this prediction was not checked against measured runs like it",),
    )
