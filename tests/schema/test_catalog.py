"""Names: near ones are suggested, and none reaches outside its folder."""

from pathlib import Path

import pytest

from shardsim.errors import InputError
from shardsim.schema.catalog import FOLDERS, find, is_path, names, near


def test_every_hardware_kind_has_entries():
    for kind in ("device", "cluster", "kernel-profile", "fabric-profile"):
        assert names(kind)
        assert list(names(kind)) == sorted(names(kind))


@pytest.mark.parametrize(
    ("wrong", "suggested"),
    [("dgx-a1000", "dgx-a100"), ("DGX-A100", "dgx-a100"), ("dgxa100", "dgx-a100"), ("seline", "selene")],
)
def test_an_unknown_name_suggests_near_ones(wrong, suggested):
    with pytest.raises(InputError, match=rf"unknown cluster '{wrong}' \(did you mean .*\b{suggested}\b.*\?\)"):
        find("cluster", wrong)


def test_a_name_near_to_nothing_is_told_what_is_known():
    with pytest.raises(InputError, match=r"unknown cluster 'xyzzy' \(known: a100-sxm-80gb-8x100, .* more\)"):
        find("cluster", "xyzzy")


@pytest.mark.parametrize("name", ["..", ".", "", "*", "a100-sxm-80gb\0", "device\\..", "CON", "a" * 5000])
def test_a_name_can_only_be_one_that_is_listed(name):
    with pytest.raises(InputError, match="unknown device"):
        find("device", name)


@pytest.mark.parametrize("name", ["../devices/l40s", "/etc/passwd", "./x", "my.yaml", "MY.YML", "config.json"])
def test_a_separator_or_a_suffix_means_a_path(name):
    assert is_path(name)
    assert find("device", name) == Path(name)


def test_a_relative_path_starts_from_the_folder_of_the_file_that_names_it(tmp_path):
    assert find("device", "own/gpu.yaml", relative_to=tmp_path) == tmp_path / "own" / "gpu.yaml"


def test_a_file_in_the_working_directory_is_hinted_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mymodel").mkdir()
    with pytest.raises(InputError, match=r"write \./mymodel to mean the file"):
        find("cluster", "mymodel")


def test_every_kind_has_a_folder_of_its_own():
    assert len(set(FOLDERS.values())) == len(FOLDERS)


def test_nothing_known_suggests_nothing():
    assert near("x", []) == ""


def test_a_users_own_entry_comes_before_the_bundled_one_from_the_moment_it_is_there(tmp_path):
    folder = tmp_path / "topologies" / "clusters"
    folder.mkdir(parents=True)
    bundled = find("cluster", "dgx-a100", (tmp_path,))
    (folder / "dgx-a100.yml").write_text("title: ours")
    assert find("cluster", "dgx-a100", (tmp_path,)) == folder / "dgx-a100.yml" != bundled
