"""Every report is what its script makes today: tables to the last byte (drawings depend on fonts and are only made)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORTS = sorted(path.parent for path in (ROOT / "reports").glob("*/run.sh"))


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.name)
def test_a_report_is_what_its_script_makes(report, tmp_path):
    folder = tmp_path / "reports" / report.name
    folder.mkdir(parents=True)
    shutil.copy(report / "run.sh", folder)
    (tmp_path / "workloads").symlink_to(ROOT / "workloads")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", str(folder / "run.sh")], check=True, capture_output=True, env=os.environ | {"PATH": path})
    made = {p.name for p in folder.iterdir()}
    assert made == {p.name for p in report.iterdir()} - {"README.md"}
    for name in sorted(made):
        if name.endswith((".csv", ".txt")):
            assert (folder / name).read_text() == (report / name).read_text(), name


def test_every_report_is_in_the_index():
    index = (ROOT / "reports" / "README.md").read_text()
    assert all(f"({report.name}/README.md)" in index for report in REPORTS)
    assert REPORTS
