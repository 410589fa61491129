"""Predicted rows of made-up runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from shardsim.validate.facts import RunFacts
from shardsim.validate.table import ValidationRow
from shardsim.values.features import RunFeatures

PEAK = 100.0
GPUS = 10

Row = Callable[..., ValidationRow]


def features() -> RunFeatures:
    """Ten GPUs of a device that does not exist."""
    return RunFeatures(
        framework="house",
        stack="none",
        device="abacus",
        generation="abacus",
        kind="dense",
        precision="bf16",
        recompute="none",
        gpus=GPUS,
        tp=2,
        pp=1,
        vpp=1,
        dp=5,
        cp=1,
        ep=1,
        zero=1,
        hidden=64,
        seq=128,
        micro_batch=1,
        microbatches=4,
        domains=1,
    )


def invented_row(
    name: str,
    measured: float,
    predicted: float,
    *,
    source: str = "lab",
    share: float = 0.5,
    job: str = "",
    layout: str = "",
    condition: str = "",
) -> ValidationRow:
    """A run that reached a share of peak in the measured time."""
    facts = RunFacts(
        features=features(),
        flop=share * measured * PEAK * GPUS,
        peak_flops=PEAK,
        seconds=(("gemm", 0.6 * predicted), ("dp", 0.4 * predicted)),
        terms=(("matrix products below peak", 0.1 * predicted), ("data-parallel communication", 0.4 * predicted)),
    )
    return ValidationRow(
        id=name,
        source=source,
        gpu="abacus",
        framework="house",
        model="m",
        measured=measured,
        predicted=predicted,
        error=predicted / measured - 1,
        status="ok",
        reason="",
        facts=facts,
        condition=condition,
        job=job,
        layout=layout,
    )


@pytest.fixture(scope="session")
def row() -> Row:
    """Makes a row, from its name, its measured and its predicted time."""
    return invented_row


@pytest.fixture(scope="session")
def job() -> Callable[..., list[ValidationRow]]:
    """Makes rows of one job, one layout each, from their measured and their predicted times."""

    def rows(
        measured: Sequence[float], predicted: Sequence[float], source: str = "lab", condition: str = ""
    ) -> list[ValidationRow]:
        named = {"source": source, "job": "j", "condition": condition}
        return [
            invented_row(f"{source}-{index}", *times, layout=str(index), **named)
            for index, times in enumerate(zip(measured, predicted, strict=True))
        ]

    return rows
