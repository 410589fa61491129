"""What lands in site-packages: one package, with its data."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    return path


def test_the_only_top_level_name_is_shardsim(wheel):
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"shardsim"}


def test_every_data_file_is_in_the_wheel(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("topologies", "workloads"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file():
                assert f"shardsim/_data/{path.relative_to(ROOT).as_posix()}" in inside


def test_the_installed_package_finds_its_data_without_a_checkout(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        "import shardsim.schema.catalog as c, shardsim.schema.locate as l; "
        "print('selene' in c.names('cluster'), all('_data' in str(p) for p in l.data_roots()))"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(site)!r}); {code}"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert outcome.stdout.split() == ["True", "True"]
