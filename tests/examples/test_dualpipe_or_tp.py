"""What the report on DualPipe in the place of tensor parallelism says is in its tables."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

REPORT = Path(__file__).resolve().parents[2] / "reports" / "dualpipe-or-tp"
ANY, PAIRED = "any schedule", "DualPipe or DualPipeV"


def read(name: str) -> list[dict[str, str]]:
    with (REPORT / name).open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, str, str, str], dict[str, Any]]:
    """Rows by model, global batch, NVLink and question."""
    return {(row["model"], row["global_batch"], row["nvlink"], row["question"]): row for row in read("study.csv")}


def test_every_answer_fits_and_is_the_best_of_many(answers: dict) -> None:
    for row in answers.values():
        assert float(row["memory"]) <= float(row["capacity"])
        if row["question"].endswith((ANY, PAIRED)):
            assert int(row["enumerated"]) > int(row["valid"]) > int(row["fitting"]) > 0
            assert (int(row["tp"]) > 1) == row["question"].startswith("TP")


def test_any_schedule_is_at_least_as_fast_as_dualpipe(answers: dict) -> None:
    for (*case, question), row in answers.items():
        if question.endswith(PAIRED):
            best = answers[*case, question.replace(PAIRED, ANY)]
            assert float(best["iteration_s"]) <= float(row["iteration_s"])


def test_faster_nvlink_helps_tensor_parallelism_and_no_other(answers: dict) -> None:
    for (*case, nvlink, question), row in answers.items():
        if nvlink == "300" and question.endswith(ANY):
            gain = float(row["iteration_s"]) / float(answers[*case, "900", question]["iteration_s"])
            assert gain > 1.02 if question.startswith("TP") else 0.999 < gain < 1.03


def test_experts_need_no_tensor_parallelism_with_dualpipe() -> None:
    rows = {(row["nvlink"], row["schedule"], row["tp"]): row for row in read("moe.csv")}
    for nvlink in ("300", "900"):
        alone, split = rows[nvlink, "dualpipe", "1"], rows[nvlink, "dualpipe", "2"]
        assert alone["fits"] == "True"
        assert float(alone["iteration_s"]) < float(split["iteration_s"])
        assert float(alone["iteration_s"]) < 0.85 * float(rows[nvlink, "1f1b", "1"]["iteration_s"])
        assert float(alone["parameters"]) > 1.5 * float(rows[nvlink, "1f1b", "1"]["parameters"])
