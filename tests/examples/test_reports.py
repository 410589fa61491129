"""Every report is what its script makes today: tables to nine digits (drawings depend on fonts and are only made)."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORTS = sorted(path.parent for path in (ROOT / "reports").glob("*/run.sh"))


def cells(path):
    """Cells of a table; numbers to nine digits, which is what two mathematical libraries agree on."""
    with path.open(newline="") as stream:
        return [[rounded(cell) for cell in row] for row in csv.reader(stream)]


def rounded(cell):
    try:
        return f"{float(cell):.9g}"
    except ValueError:
        return cell


LONG = {"dualpipe-or-tp": ("study.py", "moe.py")}
"""Steps that search for minutes: what follows from their tables is made again, from the tables as they are."""


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.name)
def test_a_report_is_what_its_script_makes(report, tmp_path):
    folder = tmp_path / "reports" / report.name
    folder.mkdir(parents=True)
    for given in ("run.sh", "*.py", "topologies"):
        for path in report.glob(given):
            shutil.copytree(path, folder / path.name) if path.is_dir() else shutil.copy(path, folder)
    (tmp_path / "workloads").symlink_to(ROOT / "workloads")
    script = (folder / "run.sh").read_text()
    for step in LONG.get(report.name, ()):
        shutil.copy(report / step.replace(".py", ".csv"), folder)
        assert f"python3 {step}\n" in script
        script = script.replace(f"python3 {step}\n", "")
    (folder / "run.sh").write_text(script)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", str(folder / "run.sh")], check=True, capture_output=True, env=os.environ | {"PATH": path})
    made = {p.name for p in folder.iterdir()}
    by_hand = {"README.md", "check.txt", "measured"}  # the last two from measurements that are not in the repository
    assert made == {p.name for p in report.iterdir()} - by_hand
    for name in sorted(made):
        if name.endswith(".txt"):
            assert (folder / name).read_text() == (report / name).read_text(), name
        if name.endswith(".csv"):
            assert cells(folder / name) == cells(report / name), name


def test_tensor_parallelism_pays_inside_nvlink_and_not_across_100_gb_per_s_of_infiniband():
    with (ROOT / "reports" / "tp-all-reduce" / "layer.csv").open(newline="") as stream:
        rows = {(row["cluster"], int(row["tp"])): row for row in csv.DictReader(stream)}
    share = {key: float(row["share"]) for key, row in rows.items() if row["share"]}
    for cluster in ("dgx-2h", "dgx-a100", "dgx-h100", "dgx-b200", "gb200-nvl72"):
        assert share[cluster, 2] < share[cluster, 8] < 0.5  # of the matrix products, inside a node
    assert share["nvlink900-ib100", 32] > 1
    assert share["ib100-only", 4] > 1
    assert share["ib100-only", 8] > 20 * share["nvlink900-ib100", 8]  # the same GPU
    assert all(rows[c, 64]["share"] == "" for c, _ in rows)  # 96 heads do not divide by 64


def test_every_report_is_in_the_index():
    index = (ROOT / "reports" / "README.md").read_text()
    assert all(f"({report.name}/README.md)" in index for report in REPORTS)
    assert REPORTS
