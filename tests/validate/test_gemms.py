"""``shardsim validate gemms``: measured matrix products against predictions."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from shardsim.cli.main import main
from shardsim.cost.gemm import gemm_seconds
from shardsim.errors import InputError
from shardsim.schema.hardware import load_device
from shardsim.schema.kernels import load_kernel_profile
from shardsim.validate.gemms import SIZES, error_statistics, size_class, validate_gemms
from shardsim.validate.gemmtable import read_gemms
from shardsim.values.operators import Gemm

H100 = "h100-sxm-80gb"


def burst(m: int, n: int, k: int, device: str = H100, dtype: str = "bf16", **more: object) -> float:
    machine = load_device(device)
    kernels = load_kernel_profile(machine.compute_profile)
    return float(gemm_seconds(Gemm("x", m, k, n, **more), machine, kernels, dtype, "burst"))  # type: ignore[arg-type]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["validate", "gemms", *map(str, arguments)])


def table(path: Path, *rows: str, header: str = "gpu,dtype,m,n,k,time_us") -> Path:
    return write(path, "\n".join([header, *rows]) + "\n")


def test_a_product_is_predicted_as_a_burst_of_the_shipped_profile(tmp_path: Path) -> None:
    file = table(tmp_path / "t.csv", "H100 SXM,bf16,4096,8192,2048,200")
    found = validate_gemms(file)
    assert found.predicted[0] == pytest.approx(burst(4096, 8192, 2048), rel=1e-12)
    assert found.error[0] == pytest.approx(burst(4096, 8192, 2048) / 200e-6 - 1.0)


def test_a_table_of_the_models_own_times_has_no_error(tmp_path: Path) -> None:
    shapes = [(m, n, 1024) for m in (16, 1024, 5000) for n in (1024, 4096)]
    rows = [
        f"NVIDIA A100-SXM4-80GB,torch.bfloat16,{m},{n},{k},{burst(m, n, k, 'a100-sxm-80gb') * 1e6!r}"
        for m, n, k in shapes
    ]
    found = validate_gemms(table(tmp_path / "t.csv", *rows))
    assert np.abs(found.error).max() < 1e-12
    assert found.overall.predicted == 6


@pytest.mark.parametrize(
    ("gpu", "device"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("h100-sxm-96gb", "h100-sxm-96gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("A100", "a100-sxm-80gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-32gb"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B200", "b200-sxm"),
        ("GB300", "gb300"),
        ("NVIDIA L40S", "l40s"),
    ],
)
def test_the_names_that_drivers_and_tables_use_are_known(tmp_path: Path, gpu: str, device: str) -> None:
    found = validate_gemms(table(tmp_path / "t.csv", f"{gpu},fp16,4096,4096,4096,200"))
    assert [group.name for group in dict(found.groups)["GPU"]] == [device]
    assert found.overall.predicted == 1


def test_every_row_is_there_in_order_with_its_reason(tmp_path: Path) -> None:
    file = table(
        tmp_path / "t.csv",
        "a,H100 SXM,bf16,4096,4096,4096,200,",
        "b,H100 PCIe,bf16,4096,4096,4096,200,",
        ",TPU v5,bf16,4096,4096,4096,200,",
        "d,H100 SXM,int4,4096,4096,4096,200,",
        "e,H100 SXM,bf16,,4096,4096,200,",
        "f,H100 SXM,bf16,4096,4096,4096,,",
        "g,H100 SXM,bf16,4096,4096,4096,200,upside down",
        "h,,bf16,4096,4096,4096,200,",
        "i,H100 SXM,,4096,4096,4096,200,",
        "j,H100 SXM,bf16,4096,4096,4096,200,NT",
        header="id,gpu,dtype,m,n,k,time_us,layout",
    )
    out = tmp_path / "rows.csv"
    result = run(file, "--out", out)
    assert result.exit_code == 0, result.stderr
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert list(rows[0]) == ["id", "measured", "predicted", "error", "status", "reason"]
    assert [row["id"] for row in rows] == ["a", "b", "3", "d", "e", "f", "g", "h", "i", "j"]
    assert [row["reason"] for row in rows] == [
        "",
        "no device of the catalog is a PCIe card of this GPU",
        "no device of the catalog is 'TPU v5'",
        f"data type 'int4' is not in the profile of {H100}",
        "m, n or k not stated",
        "no measured time",
        "layout 'upside down' is none of tn, nn, nt, forward, dgrad, wgrad",
        "no GPU stated",
        "no data type stated",
        "",
    ]
    for row in rows:
        assert (row["status"] == "ok") == bool(row["predicted"]) == bool(row["error"]) == (not row["reason"])
    assert float(rows[0]["measured"]) == 200e-6
    assert rows[5]["measured"] == ""
    assert "Skipped: 8 rows" in result.stdout


def test_layout_and_batch_of_a_row_count(tmp_path: Path) -> None:
    file = table(
        tmp_path / "t.csv",
        "H100 SXM,bf16,4096,4096,4096,200,wgrad,1",
        "H100 SXM,bf16,512,512,512,200,,32",
        header="gpu,dtype,m,n,k,time_us,layout,batch",
    )
    found = validate_gemms(file)
    assert found.predicted.tolist() == [burst(4096, 4096, 4096, layout="nt"), burst(512, 512, 512, batch=32)]


@pytest.mark.parametrize(
    ("column", "value"), [("time_us", 250), ("TIME_MS", 0.25), ("latency_s", 0.00025), ("time_ns", 250e3)]
)
def test_times_are_read_in_the_unit_that_their_column_names(tmp_path: Path, column: str, value: float) -> None:
    file = table(tmp_path / "t.csv", f"H100 SXM,bf16,64,64,64,{value}", header=f"GPU,dtype,M,N,K,{column}")
    assert read_gemms(file).seconds[0] == pytest.approx(250e-6)


def test_all_problems_of_a_header_come_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_gemms(table(tmp_path / "t.csv", "a,b,1,2,3", header="gpu,device,m,n,latency"))
    said = str(caught.value)
    for words in (
        "gpu and device say the same",
        "'dtype' is missing",
        "'k' is missing",
        "no column of times",
        "time_us",
    ):
        assert words in said


def test_all_cells_that_are_no_numbers_come_at_once_with_their_lines(tmp_path: Path) -> None:
    file = table(tmp_path / "t.csv", "H100,bf16,4096,x,4096,1", "H100,bf16,1.5,2,-3,inf", "H100,bf16,1,2,3,0")
    with pytest.raises(InputError) as caught:
        read_gemms(file)
    said = [str(problem) for problem in caught.value.problems]
    assert [line.split(": ")[0].rsplit(":", 1)[1] + line.split(": ")[1] for line in said] == [
        "3m",
        "2n",
        "3k",
        "3time_us",
        "4time_us",
    ]


def test_sizes_are_classes_that_do_not_overlap() -> None:
    m, n, k = (
        np.array(x, dtype=float) for x in ([1024, 256, 512, 1024], [1024, 8192, 512, 512], [1024, 8192, 64, 8192])
    )
    assert [SIZES[number] for number in size_class(m, n, k)] == [SIZES[0], SIZES[1], SIZES[2], SIZES[2]]


def test_statistics_are_those_of_the_known_errors() -> None:
    found = error_statistics("x", np.array([0.1, -0.2, np.nan, 0.3]))
    assert (found.rows, found.predicted, found.median, found.bias) == (4, 3, pytest.approx(0.2), pytest.approx(0.1))
    assert found.p90 == pytest.approx(0.28)
    assert error_statistics("x", np.array([np.nan])).median is None


def test_groups_hold_all_rows(tmp_path: Path) -> None:
    rows = [
        f"{gpu},{dtype},{m},4096,4096,100"
        for gpu in ("H100", "A100 80GB")
        for dtype in ("bf16", "fp16")
        for m in (8, 4096)
    ]
    found = validate_gemms(table(tmp_path / "t.csv", *rows))
    for grouping, groups in found.groups:
        assert sum(group.rows for group in groups) == 8, grouping
    assert len(dict(found.groups)["GPU, data type and size"]) == 8


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_scatter_is_the_same_for_the_same_table(tmp_path: Path, suffix: str) -> None:
    file = table(tmp_path / "t.csv", *(f"H100,bf16,{m},4096,4096,100" for m in (8, 64, 512, 4096)))
    plots = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for plot in plots:
        assert run(file, "--plot", plot).exit_code == 0
    assert plots[0].read_bytes() == plots[1].read_bytes()
    assert plots[0].read_bytes().startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_json_has_the_schema_of_validations_and_text_fits_100_columns(tmp_path: Path) -> None:
    file = table(tmp_path / "t.csv", "H100,bf16,4096,4096,4096,200", "H100 NVL,bf16,1,1,1,5")
    record = json.loads(run(file, "--json").stdout)
    assert record["schema"] == "shardsim.validation/1"
    assert (record["summary"]["rows"], record["summary"]["predicted"]) == (2, 1)
    assert record["skipped"] == [{"reason": "no device of the catalog is a PCIe card of this GPU", "rows": 1}]
    assert max(map(len, run(file).stdout.splitlines())) <= 100


def test_nothing_to_draw_is_bad_input_and_leaves_no_file(tmp_path: Path) -> None:
    file = table(tmp_path / "t.csv", "TPU,bf16,1,1,1,5")
    result = run(file, "--plot", tmp_path / "a.png", "--out", tmp_path / "rows.csv")
    assert result.exit_code == 2
    assert "nothing to draw" in result.stderr
    assert list(tmp_path.iterdir()) == [file]
    assert run(file).exit_code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "is empty"), ("gpu,dtype,m,n,k,time_us\n", "no rows"), ("gpu,dtype,m,n,k,time_us\nH100,bf16,1\n", "cut off")],
)
def test_a_broken_file_is_refused_as_a_whole(tmp_path: Path, text: str, said: str) -> None:
    result = run(write(tmp_path / "t.csv", text))
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_the_input_is_not_overwritten(tmp_path: Path) -> None:
    file = table(tmp_path / "t.csv", "H100,bf16,1,1,1,5")
    before = file.read_bytes()
    assert run(file, "--out", file).exit_code == 2
    assert file.read_bytes() == before
