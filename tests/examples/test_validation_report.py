"""What reports/validation says, against its tables."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

REPORT = Path(__file__).resolve().parents[2] / "reports" / "validation"
TEXT = (REPORT / "README.md").read_text(encoding="utf-8")


def _rows(name: str) -> list[dict[str, str]]:
    with (REPORT / "measured" / name).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _said(section: str) -> list[list[str]]:
    """Cells of the first table of a section."""
    part = TEXT.split(f"## {section}")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return rows[2:]


@pytest.mark.parametrize("number", range(len(_rows("groups.csv"))))
def test_groups_are_as_the_table_has_them(number: int) -> None:
    row, said = _rows("groups.csv")[number], _said("By group, held out")[number]
    assert int(row["rows"]) == int(said[1])
    figures = [float(row[name]) for name in ("median", "p90", "bias")]
    # The table has four digits, of which the text was not rounded again.
    assert [float(cell.removesuffix(" %")) for cell in said[2:5]] == pytest.approx(
        [100 * f for f in figures], abs=0.056
    )
    met = figures[0] <= float(row["bound of median"]) and figures[1] <= float(row["bound of p90"])
    assert row["met"] == ("yes" if met else "no")
    assert said[7].startswith(("yes", "pooled") if met else "no")


def test_the_ablation_is_as_the_table_has_it() -> None:
    figures = {
        (f"{100 * float(row['median']):.1f} %", f"{100 * float(row['p90']):.1f} %") for row in _rows("ablation.csv")
    }
    single = [row for row in _said("What each term is worth") if " to " not in row[1]]
    assert len(single) >= 10
    assert all((row[1], row[2]) in figures for row in single)


def test_published_tables_are_as_the_text_has_them() -> None:
    table = (REPORT / "published.txt").read_text(encoding="utf-8")
    found = re.findall(r"^[a-z0-9-]+ +(\d+) +([\d.]+)% +([\d.]+)% ", table, re.MULTILINE)
    assert [(row[1], row[2], row[3]) for row in _said("Published runs")] == [
        (runs, f"{mean} %", f"{worst} %") for runs, mean, worst in found
    ]
