"""The measured database's reader: found without import, read from the right end of its paths, columns checked."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest

from shardsim.calibrate import measured
from shardsim.calibrate.measured import measured_folder, medians, read_measured
from shardsim.errors import InputError

HEADER = "framework,version,device,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency"


def write(folder, *rows, name="nccl_perf.csv", header=HEADER):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


def row(op="all_reduce", dtype="half", gpus=8, elements=1024, latency=0.0125, version="2.30.1"):
    return f"X,{version},NVIDIA EXAMPLE,{op},NCCL,{dtype},{gpus},{elements},{latency}"


def test_message_size_counts_elements_and_latency_milliseconds(tmp_path):
    write(tmp_path / "systems/data/x100/comm/nccl/2.30", row(), row(dtype="int8"))
    points = read_measured(tmp_path).points
    assert points.size.tolist() == [2048.0, 1024.0]
    assert points.seconds.tolist() == [12.5e-6, 12.5e-6]
    assert points.ranks.tolist() == [8.0, 8.0]


@pytest.mark.parametrize("path", ["x100/nccl/2.30", "a/b/c/x100/comm/nccl/2.30", "data/x100/comm/nccl/2.30"])
def test_device_and_version_are_read_from_the_right_end_of_the_path(tmp_path, path):
    write(tmp_path / path, row())
    found = read_measured(tmp_path)
    assert (found.files[0].device, found.files[0].version) == ("x100", "2.30")
    assert found.points.device.tolist() == ["x100"]


def test_the_version_of_a_row_beats_that_of_its_folder(tmp_path):
    write(tmp_path / "x100/comm/nccl/2.27", row(version="2.29.2"))
    assert read_measured(tmp_path).points.origin.tolist() == ["x100 NCCL 2.29.2"]


def test_tables_of_other_libraries_and_without_the_columns_are_passed_over_and_named(tmp_path):
    write(tmp_path / "x100/comm/nccl/2.30", row())
    write(tmp_path / "x100/comm/trtllm/1.0", row())
    write(tmp_path / "y100/comm/nccl/2.30", "1,2", header="size,time")
    found = read_measured(tmp_path)
    assert len(found.points) == 1
    assert any("trtllm" in reason for reason in found.passed_over)
    assert any("no column nccl_dtype" in reason for reason in found.passed_over)
    assert "x100: 1 rows" in found.summary()


def test_rows_that_are_no_measurement_are_left_out(tmp_path):
    write(tmp_path / "x100/comm/nccl/2.30", row(), row(latency=0), row(op="barrier"), row(gpus=1), row(dtype="odd"))
    found = read_measured(tmp_path)
    assert (found.files[0].rows, found.files[0].used) == (5, 1)


def test_repeats_become_one_point_with_their_median(tmp_path):
    write(tmp_path / "x100/comm/nccl/2.30", *(row(latency=latency) for latency in (0.01, 0.02, 0.09)), row(gpus=4))
    points = medians(read_measured(tmp_path).points)
    assert points.seconds.tolist() == [20e-6, 12.5e-6]


def test_a_folder_without_tables_and_unusable_tables_are_refused(tmp_path):
    with pytest.raises(InputError, match="no NCCL table found"):
        read_measured(tmp_path)
    write(tmp_path / "y100/comm/nccl/2.30", "1,2", header="size,time")
    with pytest.raises(InputError, match="no column"):
        read_measured(tmp_path)


def test_an_extra_that_is_not_installed_is_asked_for_by_name(monkeypatch):
    monkeypatch.setattr(measured, "PACKAGES", ("no_such_package_anywhere",))
    with pytest.raises(InputError, match="shardsim\\[measured\\]"):
        measured_folder()


def test_the_package_is_found_without_being_imported(tmp_path, monkeypatch):
    package = tmp_path / "invented_tables"
    write(package / "x100/comm/nccl/2.30", row())
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(measured, "PACKAGES", ("invented_tables",))
    assert len(read_measured().points) == 1
    assert "invented_tables" not in sys.modules


@pytest.mark.skipif(
    not any(importlib.util.find_spec(name) for name in measured.PACKAGES),
    reason="the optional extra shardsim[measured] is not installed",
)
def test_the_real_database_holds_the_documented_figure():
    """512 MiB all-gather over 8 H100: 335 GB/s of bus bandwidth, as public logs have it."""
    points = read_measured().points
    some = (points.device == "h100_sxm") & (points.kind == "all_gather") & (points.ranks == 8)
    some &= (points.size == 2.0**29) & (points.dtype == "half")
    bus = points.size[some] / points.seconds[some] * 7 / 8
    assert np.median(bus) == pytest.approx(335e9, rel=0.03)
