"""Measured products and expert layers: read from the right end of their paths, columns checked, repeats once."""

from __future__ import annotations

import pytest

from shardsim.calibrate.measured_gemm import gemm_tables, mean_of, moe_table
from shardsim.errors import InputError

HEADER = "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency"
MOE = (
    "framework,version,device,op_name,kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,"
    "moe_tp_size,moe_ep_size,distribution,latency"
)


def write(folder, *rows, name="gemm_perf.csv", header=HEADER):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


def row(m=128, latency=0.02, dtype="bfloat16"):
    return f"X,1.0,NVIDIA EXAMPLE,gemm,any,{dtype},{m},256,512,{latency}"


@pytest.mark.parametrize("path", ["x100/gemm/lib/1.0", "systems/data/x100/gemm/lib/1.0", "x100/lib/1.0"])
def test_device_framework_and_version_are_read_from_the_right_end_of_the_path(tmp_path, path):
    write(tmp_path / path, row())
    table = gemm_tables("x100/lib/1.0", tmp_path)["bf16"]
    assert (table.m[0], table.n[0], table.k[0], table.seconds[0]) == (128, 256, 512, pytest.approx(20e-6))


def test_data_types_lie_apart_repeats_count_once_and_failures_not_at_all(tmp_path):
    rows = [row(latency=x) for x in (0.01, 0.02, 0.09)]
    write(tmp_path / "x100/gemm/lib/1.0", *rows, row(m=1, latency=0), row(dtype="nvfp4"), row(dtype="int4_wo"))
    found = gemm_tables("x100/lib/1.0", tmp_path)
    assert sorted(found) == ["bf16", "fp4"]
    assert found["bf16"].seconds.tolist() == pytest.approx([20e-6])


def test_the_mean_of_two_tables_is_geometric_and_of_common_shapes(tmp_path):
    write(tmp_path / "x100/gemm/a/1", row(latency=0.01), row(m=7))
    write(tmp_path / "x100/gemm/b/1", row(latency=0.04), row(m=9))
    mean = mean_of([gemm_tables(f"x100/{name}/1", tmp_path)["bf16"] for name in ("a", "b")])
    assert (mean.m.tolist(), mean.seconds.tolist()) == ([128.0], pytest.approx([20e-6]))


def test_a_table_that_is_not_there_or_lacks_columns_is_refused_with_near_names(tmp_path):
    write(tmp_path / "x100/gemm/lib/1.0", "1,2", header="m,n")
    with pytest.raises(InputError, match="did you mean x100/lib"):
        gemm_tables("x100/lib/1.1", tmp_path)
    with pytest.raises(InputError, match="no column gemm_dtype, k, latency"):
        gemm_tables("x100/lib/1.0", tmp_path)


def test_expert_layers_are_balanced_16_bit_rows_of_one_rank(tmp_path):
    rows = [
        f"X,1.0,EX,moe,{kernel},{dtype},1024,4096,14336,2,8,2,4,{spread},0.5"
        for kernel, dtype, spread in (
            ("cut", "bfloat16", "balanced"), ("cut", "fp8", "balanced"), ("cut", "bfloat16", "power_law_1.2"),
            ("other", "bfloat16", "balanced"),
        )
    ]  # fmt: skip
    write(tmp_path / "x100/moe/lib/1.0", *rows, name="moe_perf.csv", header=MOE)
    table = moe_table("x100/lib/1.0", ["cut"], tmp_path)
    assert len(table) == 1
    assert (table.inter[0], table.experts[0], table.rows[0]) == (7168.0, 2.0, 256.0)
