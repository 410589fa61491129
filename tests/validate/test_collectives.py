"""Measured collectives against predictions: rows in order, reasons for what cannot be expressed, groups."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from shardsim.cli.main import main
from shardsim.cost.collectives import collective_transfer
from shardsim.errors import InputError
from shardsim.schema.hardware import load_cluster, load_fabric_profile
from shardsim.topology.blocks import block_shape
from shardsim.validate.collectives import validate_collectives

COLUMNS = (
    "id,source,gpu,gpus_per_node,nodes,inter_node_gbps_per_gpu,collective,bytes,time_us,healthy,dtype,cluster,fabric"
)


def table(tmp_path, *rows, columns=COLUMNS):
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([columns, *rows]) + "\n", encoding="utf-8")
    return path


def one(tmp_path, row):
    return validate_collectives(table(tmp_path, row)).rows[0]


def test_a_row_is_predicted_as_the_model_prices_it(tmp_path):
    row = one(tmp_path, "a,log,H100,8,2,400,all_reduce,1073741824,4000,yes,float,,")
    cluster = load_cluster("dgx-h100")
    shape = block_shape(cluster, 8.0, 2.0, 50e9)
    priced = collective_transfer(
        "all_reduce", 2.0**30, shape, cluster, load_fabric_profile(cluster.fabric_profile), dtype="float"
    )
    assert row.predicted == pytest.approx(priced.seconds, rel=1e-12)
    assert row.measured == pytest.approx(4e-3)
    assert row.error == pytest.approx(row.predicted / row.measured - 1)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a,log,TPU v5,8,1,,all_reduce,1024,10,yes,float,,", "no cluster of the catalog has 'TPU v5'"),
        ("a,log,H100 PCIe,8,1,,all_reduce,1024,10,yes,float,,", "no cluster of the catalog has PCIe cards"),
        ("a,log,H100,8,1,,gather,1024,10,yes,float,,", "collective 'gather' is not modelled"),
        ("a,log,H100,8,1,,all_reduce,0,10,yes,float,,", "no bytes"),
        ("a,log,H100,8,1,,all_reduce,1024,,yes,float,,", "no measured time"),
        ("a,log,H100,1,1,,all_reduce,1024,10,yes,float,,", "a group of one rank"),
        ("a,log,H100,2;4,1,,all_reduce,1024,10,yes,float,,", "number of nodes or of GPUs a node not stated"),
    ],
)
def test_what_cannot_be_expressed_is_skipped_with_its_reason(tmp_path, row, reason):
    found = one(tmp_path, row)
    assert (found.status, found.predicted, found.reason) == ("skipped", None, reason)


def test_rows_keep_their_order_and_number(tmp_path):
    rows = [
        f",log,{gpu},8,1,,all_reduce,{size},50,yes,float,," for size in (1024, 2048) for gpu in ("H100", "A100", "X")
    ]
    found = validate_collectives(table(tmp_path, *rows))
    assert [row.id for row in found.rows] == ["1", "2", "3", "4", "5", "6"]
    assert [row.status for row in found.rows] == ["ok", "ok", "skipped"] * 2
    assert found.skipped == (("no cluster of the catalog has 'X'", 2),)


def test_a_cluster_or_fabric_that_is_named_is_taken(tmp_path):
    ndr = one(tmp_path, "a,log,B200,8,4,,all_reduce,17179869184,90000,yes,float,dgx-b200,")
    sharp = one(tmp_path, "a,log,B200,8,4,,all_reduce,17179869184,90000,yes,float,dgx-b200,nvlink5-ndr-sharp")
    assert sharp.predicted < 0.8 * ndr.predicted


def test_hints_in_the_source_tell_fabrics_of_equal_bandwidth_apart(tmp_path):
    row = "a,{},H100,8,2,400,all_reduce,1073741824,4000,yes,float,,"
    assert one(tmp_path, row.format("aws-samples run")).framework == "aws-p5"
    assert one(tmp_path, row.format("my InfiniBand cluster")).framework == "dgx-h100"


def test_unhealthy_rows_are_predicted_and_kept_out_of_the_other_groups(tmp_path):
    rows = [f"a,log,H100,8,1,,all_reduce,1048576,{time},{state},float,," for time, state in ((40, "yes"), (900, "no"))]
    found = validate_collectives(table(tmp_path, *rows))
    groups = dict(found.groups)
    assert {group.name: group.rows for group in groups["healthy"]} == {"yes": 1, "no": 1}
    assert [group.rows for group in groups["GPU, dtype, reach, collective (healthy)"]] == [1]
    assert (found.headline.rows, found.overall.rows) == (1, 2)


def test_missing_columns_are_all_named(tmp_path):
    with pytest.raises(InputError) as caught:
        validate_collectives(table(tmp_path, "H100,8", columns="gpu,bytes"))
    text = str(caught.value)
    assert all(name in text for name in ("gpus_per_node", "nodes", "collective", "time_us"))


def test_the_command_writes_one_row_for_each_input_row(tmp_path):
    path = table(tmp_path, *(f"r{n},log,H100,8,1,,all_gather,{4**n},30,yes,float,," for n in range(6, 12)))
    out = tmp_path / "out.csv"
    result = CliRunner().invoke(main, ["validate", "collectives", str(path), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "6 of 6 rows predicted" in result.output
    lines = out.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "id,measured,predicted,error,status,reason"
    assert [line.split(",")[0] for line in lines[1:]] == [f"r{n}" for n in range(6, 12)]


def test_groups_tell_gpu_dtype_reach_and_collective_apart_and_leave_small_buffers_out(tmp_path):
    rows = [
        f"a,log,H100,8,{nodes},,{kind},{size},{50 * nodes},yes,{dtype},,"
        for nodes, kind, dtype, size in [
            (1, "all_reduce", "half", 2**16),
            (1, "all_reduce", "float16", 2**30),
            (1, "all_reduce", "half", 2**15),
            (2, "all_reduce", "half", 2**20),
            (2, "all_reduce", "half", 2**19),
            (2, "alltoall", "int8", 2**30),
        ]
    ]
    groups = dict(validate_collectives(table(tmp_path, *rows)).groups)
    found = {g.name: (g.predicted, g.sizes) for g in groups["GPU, dtype, reach, collective (healthy)"]}
    assert found == {
        "H100 x 8, fp16, 1 node, all_reduce": (2, (2.0**16, 2.0**30)),
        "H100 x 8, fp16, nodes, all_reduce": (1, (2.0**20, 2.0**20)),
        "H100 x 8, int8, nodes, all_to_all": (1, (2.0**30, 2.0**30)),
    }
    assert [(g.name, g.predicted) for g in groups["size (healthy)"]] == [
        ("1 node, 64 KiB and more", 2),
        ("1 node, under 64 KiB", 1),
        ("nodes, 1 MiB and more", 2),
        ("nodes, under 1 MiB", 1),
    ]


def test_rows_of_a_source_that_the_profile_was_fitted_to_are_told_apart(tmp_path):
    """nvlink4-ndr cites xxrjun/nccl-tests-cluster; an address of the same owner is not that."""
    sources = ("https://github.com/xxrjun/nccl-tests-cluster/blob/x/y.log", "https://github.com/xxrjun/other", "log")
    rows = [f"a,{source},H100,8,1,,all_reduce,1048576,40,yes,float,dgx-h100," for source in sources]
    groups = dict(validate_collectives(table(tmp_path, *rows)).groups)
    assert {g.name: g.predicted for g in groups["source (healthy)"]} == {
        "one that the profile was fitted to": 1,
        "others": 2,
    }


def test_every_group_is_printed_with_its_sizes_within_a_hundred_columns(tmp_path):
    rows = [
        f"a,log,H100-80GB-HBM3,{n},1,,{kind},{size},{20 + size / 2e5:.0f},yes,double,dgx-h100,"
        for n in (2, 4, 6, 8)
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
        for size in (2**16, 2**34)
    ]
    result = CliRunner().invoke(main, ["validate", "collectives", str(table(tmp_path, *rows))])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 100
    assert sum("64Ki..16Gi" in line and "H100-80GB-HBM3 x" in line for line in lines) == 16
    assert not any("more (--json)" in line or "…" in line for line in lines)


def test_an_unknown_data_type_is_a_skipped_row_with_its_reason(tmp_path):
    found = one(tmp_path, "a,log,H100,8,1,,all_reduce,1024,10,yes,float9,,")
    assert (found.status, found.reason) == ("skipped", "'float9' is no data type")


def test_a_table_in_utf_16_is_read(tmp_path):
    path = table(tmp_path, "a,log,H100,8,1,,all_reduce,1024,10,yes,float,,")
    path.write_bytes(path.read_text(encoding="utf-8").encode("utf-16"))
    assert validate_collectives(path).rows[0].status == "ok"
