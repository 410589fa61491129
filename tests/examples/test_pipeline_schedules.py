"""What the report on pipeline schedules says is in its table."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

TABLE = Path(__file__).resolve().parents[2] / "reports" / "pipeline-schedules" / "schedules.csv"
GIB = 2.0**30


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    with TABLE.open(newline="") as stream:
        return [{k: v if k == "schedule" else float(v) for k, v in row.items()} for row in csv.DictReader(stream)]


def within(rows: list[dict[str, Any]], budget: float) -> dict[str, float]:
    """Iteration time [s] of each schedule's fastest variant within a budget [bytes], the fastest schedule first."""
    found: dict[str, float] = {}
    for row in sorted(rows, key=lambda row: row["iteration_s"]):
        if row["peak"] <= budget:
            found.setdefault(row["schedule"], row["iteration_s"])
    return found


def test_with_memory_to_spare_interleaved_leads_and_three_come_close(rows: list[dict[str, Any]]) -> None:
    found = within(rows, float("inf"))
    first, *close = list(found)[:4]
    assert first == "interleaved, v = 4"
    assert set(close) == {"dualpipev", "dualpipe", "zb-v"}
    assert max(found[name] for name in close) < 1.04 * found[first]


@pytest.mark.parametrize(
    ("gib", "leader"), [(None, "dualpipev"), (64, "v-half"), (48, "interleaved, v = 4")], ids=["device", "64", "48"]
)
def test_at_equal_memory_the_leader_depends_on_the_budget(
    rows: list[dict[str, Any]], gib: float | None, leader: str
) -> None:
    found = within(rows, rows[0]["capacity"] if gib is None else gib * GIB)
    assert next(iter(found)) == leader
    assert 1.22 <= found["1f1b"] / found[leader] <= 1.295


def test_recomputation_saves_nothing_that_weight_gradients_wait_for(rows: list[dict[str, Any]]) -> None:
    for name in ("zb-h1", "zb-h2", "zb-v"):
        peaks = [row["peak"] for row in rows if row["schedule"] == name]
        assert min(peaks) > 0.94 * max(peaks)
    peaks = [row["peak"] for row in rows if row["schedule"] == "1f1b"]
    assert min(peaks) < 0.4 * max(peaks)
