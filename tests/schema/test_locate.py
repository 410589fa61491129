"""Data is found in a checkout, in a wheel, and in a user's own folders."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from shardsim.errors import InputError
from shardsim.schema.catalog import find, names
from shardsim.schema.locate import data_roots

ROOT = Path(__file__).parents[2]


@pytest.fixture
def own(tmp_path):
    devices = tmp_path / "topologies" / "devices"
    devices.mkdir(parents=True)
    text = (ROOT / "topologies" / "devices" / "l40s.yaml").read_text(encoding="utf-8")
    (devices / "my-gpu.yaml").write_text(text, encoding="utf-8")
    (devices / "h100-sxm-80gb.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_checkout_finds_its_own_folders(monkeypatch):
    monkeypatch.delenv("SHARDSIM_DATA", raising=False)
    (root,) = data_roots()
    assert (root / "topologies" / "devices" / "a100-sxm-80gb.yaml").is_file()
    assert (root / "workloads").is_dir()


def test_a_users_folder_adds_names_and_overrides_the_bundled_ones(own):
    assert "my-gpu" in names("device", [own])
    assert find("device", "my-gpu", [own]).parent == own / "topologies" / "devices"
    assert find("device", "h100-sxm-80gb", [own]).is_relative_to(own)
    assert not find("device", "a100-sxm-80gb", [own]).is_relative_to(own)
    assert "my-gpu" not in names("device")


def test_the_environment_variable_adds_folders(own, tmp_path_factory, monkeypatch):
    other = tmp_path_factory.mktemp("other")
    (other / "workloads").mkdir()
    monkeypatch.setenv("SHARDSIM_DATA", os.pathsep.join([str(own), "", str(other)]))
    assert data_roots()[:2] == (own, other)
    assert "my-gpu" in names("device")


def test_a_folder_that_is_none_or_holds_nothing_is_refused(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("SHARDSIM_DATA", str(tmp_path / "empty"))
    with pytest.raises(InputError) as error:
        data_roots([tmp_path / "nowhere"])
    first, second = error.value.problems
    assert (first.where, second.where) == ("--data", "SHARDSIM_DATA")
    assert "is not a directory" in first.what
    assert "holds neither topologies/ nor workloads/" in second.what


def test_a_wheel_holds_one_package_with_the_data_in_it(tmp_path):
    pytest.importorskip("hatchling", reason="building a wheel needs hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        assert {top for top in tops if not top.endswith(".dist-info")} == {"shardsim"}
        site = tmp_path / "site"
        archive.extractall(site)
    script = (
        "import shardsim\n"
        "from shardsim.schema.catalog import find, names\n"
        "from shardsim.schema.hardware import load_cluster\n"
        "assert load_cluster('dgx-2h').gpus_per_node == 16\n"
        "print(shardsim.__file__, find('cluster', 'dgx-2h'), *names('device'), sep='\\n')\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "SHARDSIM_DATA"}
    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(site)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    package, cluster, *devices = found
    assert Path(package).is_relative_to(site)
    assert Path(cluster) == site / "shardsim" / "_data" / "topologies" / "clusters" / "dgx-2h.yaml"
    assert devices == list(names("device"))
