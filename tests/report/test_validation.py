"""What a validation of runs says on the screen and as JSON."""

from __future__ import annotations

import json

from rich.console import Console

from shardsim.report.validation import validation_json, validation_text
from shardsim.validate.facts import RunFacts
from shardsim.validate.summary import summarise
from shardsim.validate.table import ValidationRow, ValidationTable
from shardsim.values.features import RunFeatures

PEAK, GPUS = 100.0, 8


def made_up(errors: list[float], shares: list[float], *, condition: str = "") -> ValidationTable:
    """Layouts of one job that took a second at a share of peak."""
    rows = []
    for index, (error, share) in enumerate(zip(errors, shares, strict=True)):
        features = RunFeatures(
            "house", "none", "abacus", "abacus", "dense", "bf16", "none", GPUS, 2, 2, 1, 2, 1, 1, 1, 64, 1024, 1, 4, 1
        )
        seconds = (("gemm", 0.3 * (1 + error)), ("bubble", 0.7 * (1 + error)))
        facts = RunFacts(features, share * PEAK * GPUS, PEAK, seconds, (("pipeline bubble", seconds[1][1]),))
        rows.append(
            ValidationRow(
                id=f"a run with a name that is far too long for any line of a screen, number {index}",
                source="a source with a name that is far too long for any line of a screen, and longer than a line is",
                gpu="abacus",
                framework="house",
                model="m",
                measured=1.0,
                predicted=1.0 + error,
                error=error,
                status="ok",
                reason="",
                facts=facts,
                condition=condition,
                job="j",
                layout=str(index),
            )
        )
    return summarise("runs.csv", rows)


def printed(table: ValidationTable) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(validation_text(table))
    return capture.get()


def test_where_a_constant_is_as_good_it_is_named() -> None:
    text = " ".join(printed(made_up([0.2] * 14, [0.3] * 14)).split())
    assert "Not better than a constant, by median, in groups of 10 rows or more: all (20.0 % against 0.0 %)" in text
    text = " ".join(printed(made_up([0.0] * 14, [0.02 * (i + 1) for i in range(14)])).split())
    assert "Ours is better, by median, in every group of 10 rows or more." in text


def test_worst_rows_and_ranking_are_within_100_columns() -> None:
    text = printed(made_up([0.01 * i for i in range(14)], [0.3] * 14))
    assert "8 x abacus, TP2 PP2 DP2, ZeRO 1, 4 micro-batches of 1 x 1,024" in text
    assert "largest term: pipeline bubble, 70 %; a source" in text
    assert "ranking of 5 layouts or more of one job" in text
    assert max(map(len, text.splitlines())) <= 100


def test_json_has_worst_rows_and_ranking_in_full() -> None:
    record = json.loads(validation_json(made_up([0.01 * i for i in range(14)], [0.3] * 14)))
    assert len(record["worst"]) == 10
    assert record["worst"][0]["features"]["tp"] == 2
    assert record["worst"][0]["largest_term"] == "pipeline bubble"
    assert record["ranking"]["groups"] == 1
    assert record["ranking"]["spearman_median"] == 0.0
    assert record["ranking"]["of"][0]["layouts"] == 14
    assert record["summary"]["baselines"]["best_constant"]["share_of_peak"] > 0
