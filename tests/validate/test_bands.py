"""From validated rows to bands, and back from their file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardsim.schema.bands import FILE, load_bands
from shardsim.validate.bands import bands_yaml, read_errors, validated_groups
from shardsim.validate.facts import RunFacts
from shardsim.validate.table import ValidationRow
from shardsim.values.features import RunFeatures


def _row(index: int, error: float, *, generation: str = "h100-sxm", condition: str = "") -> ValidationRow:
    features = RunFeatures(
        framework="megatron-core",
        stack="none",
        device=generation,
        generation=generation,
        kind="dense",
        precision="bf16",
        recompute="none",
        gpus=8 * (1 + index),
        tp=8,
        pp=1,
        vpp=1,
        dp=1 + index,
        cp=1,
        ep=1,
        zero=1,
        hidden=4096,
        seq=4096,
        micro_batch=1,
        microbatches=8,
        domains=1 + index,
    )
    facts = RunFacts(features, flop=1e15, peak_flops=1e15, seconds=(("gemm", 1.0),), terms=(("gemm", 0.1),))
    named = {"id": f"run {index} {generation}", "source": f"s{index % 3}", "gpu": generation, "framework": "m"}
    return ValidationRow(
        **named,
        model=f"model {index % 4}",
        measured=1.0,
        predicted=1.0 + error,
        error=error,
        status="ok",
        reason="",
        facts=facts,
        condition=condition,
    )


ROWS = tuple(_row(index, error) for index, error in enumerate(np.linspace(-0.2, 0.1, 21)))


def test_a_tenth_of_the_measured_times_lies_outside_on_either_side() -> None:
    groups = validated_groups(ROWS)
    assert [group.keys for group in groups] == [3, 2, 1, 0]
    exact = groups[0]
    measured_over_predicted = np.array([1.0 / (1.0 + row.error) for row in ROWS if row.error is not None])
    assert float(np.mean(measured_over_predicted < exact.low)) == pytest.approx(0.1, abs=0.05)
    assert float(np.mean(measured_over_predicted > exact.high)) == pytest.approx(0.1, abs=0.05)
    assert (exact.rows, exact.models, exact.sources) == (21, 4, 3)
    assert exact.ranges["gpus"] == (8, 168)
    assert exact.name == "dense models on h100-sxm under megatron-core"


def test_few_rows_make_no_group_and_sick_rows_count_nowhere() -> None:
    assert validated_groups(ROWS[:9]) == ()
    sick = tuple(_row(index, 3.0, condition="sick") for index in range(20))
    assert validated_groups((*ROWS, *sick)) == validated_groups(ROWS)
    healthy = tuple(_row(index, 0.0, condition="healthy") for index in range(20))
    assert validated_groups(healthy)[0].rows == 20


def test_held_out_errors_take_the_place_of_a_rows_own() -> None:
    held = {row.id: 0.5 for row in ROWS}
    assert validated_groups(ROWS, held)[0].median == pytest.approx(0.5)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    other = tuple(_row(index, 0.02 * index, generation="a100-sxm") for index in range(12))
    groups = validated_groups((*ROWS, *other))
    path = tmp_path / FILE
    path.parent.mkdir(parents=True)
    path.write_text(bands_yaml(groups, 'runs "of ours"'), encoding="utf-8")
    read = load_bands([tmp_path])
    assert {group.name for group in read} == {group.name for group in groups}
    for one in read:
        same = next(group for group in groups if group.name == one.name)
        assert (one.rows, one.ranges, one.precisions) == (same.rows, same.ranges, same.precisions)
        assert one.low == pytest.approx(same.low, abs=1e-4)


def test_errors_of_rows_are_read_by_id(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,measured,predicted,error,status,reason\na,1,1.1,0.1,ok,\nb,1,,,skipped,few\n", encoding="utf-8")
    assert read_errors(path) == {"a": pytest.approx(0.1)}
