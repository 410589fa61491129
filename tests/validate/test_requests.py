"""What the words of real tables become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardsim.errors import InputError
from shardsim.schema.catalog import names as catalog_names
from shardsim.schema.validation import FILE, MeasuredNames, measured_names
from shardsim.validate.requests import RowRequest, row_request
from shardsim.validate.rows import MeasuredRun, read_measured_runs

BASE: dict[str, str] = {
    "gpu": "A100 80GB",
    "num_gpus": "64",
    "layers": "24",
    "hidden": "1024",
    "heads": "16",
    "vocab": "51200",
    "seq_len": "2048",
    "global_batch": "64",
    "micro_batch": "4",
    "iteration_time_s": "2.0",
}


@pytest.fixture(scope="module")
def rules() -> MeasuredNames:
    return measured_names()


def measured(folder: Path, **cells: str) -> MeasuredRun:
    row = BASE | cells
    path = folder / "one.csv"
    path.write_text(",".join(row) + "\n" + ",".join(f'"{cell}"' for cell in row.values()) + "\n", encoding="utf-8")
    return read_measured_runs(path)[0]


@pytest.fixture
def interpret(tmp_path: Path, rules: MeasuredNames) -> Any:
    def read(**cells: str) -> RowRequest:
        return row_request(measured(tmp_path, **cells), rules)

    return read


@pytest.mark.parametrize(
    ("gpu", "memory", "year", "cluster"),
    [
        ("V100 (DGX-2)", "", "2020", "dgx-2h"),
        ("V100 DGX-2H", "", "", "dgx-2h"),
        ("V100 32GB (DGX-2H)", "", "", "dgx-2h"),
        ("A100 80GB", "80", "", "dgx-a100"),
        ("NVIDIA A100-SXM4-80GB", "", "", "dgx-a100"),
        ("A100 40GB", "", "", "dgx-a100-40gb"),
        ("A100-SXM4-40GB", "", "", "dgx-a100-40gb"),
        ("A100", "40", "", "dgx-a100-40gb"),
        ("A100 (DGX A100)", "", "2020", "dgx-a100-40gb"),
        ("A100 (DGX A100)", "", "2022", "dgx-a100"),
        ("A100 80GB (DGX A100, Selene)", "80", "", "selene"),
        ("H100 SXM 80GB", "", "", "dgx-h100"),
        ("H100 80GB", "", "", "dgx-h100"),
        ("H100 96GB HBM2e 2.4TB/s, 500W (Grand Teton)", "96", "", "hgx-h100-96gb"),
        ("H200", "", "", "hgx-h200"),
        ("H800", "", "", "hgx-h800"),
        ("B200 SXM", "", "", "dgx-b200"),
        ("B300", "", "", "hgx-b300"),
        ("GB200", "", "", "gb200-nvl72"),
        ("GB300", "", "", "gb300-nvl72"),
    ],
)
def test_gpus_become_clusters(interpret: Any, gpu: str, memory: str, year: str, cluster: str) -> None:
    assert interpret(gpu=gpu, gpu_mem_gb=memory, year=year).run["cluster"] == cluster


@pytest.mark.parametrize("gpu", ["TPU v5", "A100 PCIe 80GB", "H100 PCIe", "V100 16GB", "MI300X", ""])
def test_unknown_gpus_are_a_reason(interpret: Any, gpu: str) -> None:
    found = interpret(gpu=gpu)
    assert found.run is None
    assert "cluster" in found.reason


def test_the_interconnect_chooses_among_clusters_of_one_gpu(interpret: Any) -> None:
    omnipath = interpret(interconnect_inter="4 Omni-Path (OPA) links per node")
    assert omnipath.run["cluster"] == "a100-sxm-80gb-8x100"
    half = interpret(interconnect_inter="800 Gb/s per node in total")
    assert half.run["set"] == {"cluster.nics_per_node": 4, "cluster.nic.bandwidth": "200 Gb/s"}
    assert half.notes


@pytest.mark.parametrize(
    ("cell", "precision"),
    [
        ("fp16 mixed", "fp16"),
        ("bf16", "bf16"),
        ("amp_bf16", "bf16"),
        ("fp16 or bf16 (not stated per table)", "bf16"),
        ("fp8", "fp8"),
        ("fp8-cs", "fp8-current"),
        ("fp8_mx", "mxfp8"),
        ("amp_fp8", "fp8"),
        ("mxfp8", "mxfp8"),
        ("fp8 rowwise", "fp8"),
        ("nvfp4", "nvfp4"),
    ],
)
def test_spellings_of_precision(interpret: Any, cell: str, precision: str) -> None:
    assert interpret(precision=cell).run["precision"] == precision


@pytest.mark.parametrize(
    ("cell", "framework"),
    [
        ("Megatron-LM 2019", "megatron-2019"),
        ("Megatron-LM 2020-09", "megatron-2019"),
        ("Megatron-LM (Narayanan 2021)", "megatron-2021"),
        ("Megatron-LM (Narayanan 2021), torch DDP", "megatron-2021-torch-ddp"),
        ("Narayanan et al.", "megatron-2021"),
        ("Megatron-LM (2022)", "megatron-2021"),
        ("Megatron-DeepSpeed (BigScience)", "megatron-deepspeed"),
        ("nanotron, TP mode REDUCE_SCATTER", "nanotron"),
        ("NeMo (Megatron-Core)", "megatron-core"),
        ("Megatron-Bridge/Megatron-Core, NeMo 25.09", "megatron-core"),
        ("Megatron-LM 23e00ed + TE 2.11, torch 2.10", "megatron-core"),
    ],
)
def test_frameworks_become_profiles(interpret: Any, cell: str, framework: str) -> None:
    assert interpret(framework=cell).run["framework"] == framework


@pytest.mark.parametrize("cell", ["torchtitan (FSDP2)", "Composer/PyTorch FSDP PURE", "MaxText (JAX), FSDP+DP"])
def test_fully_sharded_stacks_are_skipped(interpret: Any, cell: str) -> None:
    assert interpret(framework=cell).reason == "fully sharded data parallelism is not modelled in this version"


def test_a_substitute_profile_is_noted(interpret: Any) -> None:
    assert interpret(framework="Megatron-LM 2020-09").notes == ("the README's code of 2020 taken as megatron-2019",)


def test_what_is_not_stated_is_left_to_the_framework(interpret: Any) -> None:
    run = interpret(sp="", zero_stage="", recompute="", precision="", framework="").run
    assert set(run) == {"model", "cluster", "gpus", "batch"}


def test_layout_cells_become_layout_keys(interpret: Any) -> None:
    row = {"tp": "2.0", "pp": "4.0", "dp": "8", "vpp": "3", "sp": "yes", "zero_stage": "1"}
    run = interpret(**row, schedule="interleaved-1f1b", recompute="selective").run
    assert run["layout"] == {
        "tp": 2,
        "pp": 4,
        "vpp": 3,
        "sp": True,
        "zero": 1,
        "schedule": "interleaved",
        "recompute": "selective",
    }


def test_sequence_parallelism_without_tensor_parallelism_is_none(interpret: Any) -> None:
    assert interpret(tp="1", sp="yes").run["layout"]["sp"] is False


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"arch_class": "moe-mla"}, "mixture of experts"),
        ({"experts": "8"}, "mixture of experts"),
        ({"ep": "8"}, "expert parallelism"),
        ({"cp": "2", "num_gpus": "64"}, "context parallelism"),
        ({"zero_stage": "3"}, "fully sharded"),
        ({"zero_stage": "SHARD_GRAD_OP"}, "ZeRO-2"),
        ({"tp": "2", "dp": "8"}, "is not 64 GPUs"),
        ({"pp": "2", "schedule": "interleaved-1f1b"}, "without its number of chunks"),
        ({"pp": "2", "schedule": "DualPipe"}, "DualPipe"),
        ({"framework": "my own"}, "no rule for the framework 'my own'"),
        ({"precision": "int4"}, "no rule for the precision 'int4'"),
        ({"arch_class": "mamba"}, "no rule for the architecture class 'mamba'"),
        ({"sp": "perhaps"}, "no rule for the sequence parallelism 'perhaps'"),
    ],
)
def test_what_cannot_be_expressed_is_said(interpret: Any, cells: dict[str, str], reason: str) -> None:
    found = interpret(**cells)
    assert found.run is None
    assert reason in found.reason


def test_every_reason_against_a_row_is_named(interpret: Any) -> None:
    reason = interpret(gpu="TPU", cp="2", layers="", precision="int4").reason
    assert reason.split("; ") == [
        "not stated: layers",
        "no cluster of the catalog has the GPU 'TPU'",
        "context parallelism is not modelled in this version",
        "no rule for the precision 'int4'",
    ]


def test_llama_rows_are_llama_models(interpret: Any) -> None:
    model = interpret(arch_class="dense-swiglu", kv_heads="8", ffn_hidden="4096", model="Llama").run["model"]
    assert (model["activation"], model["norm"], model["position"], model["bias"]) == (
        "swiglu",
        "rmsnorm",
        "rope",
        False,
    )
    assert (model["kv_heads"], model["ffn"], model["name"]) == (8, 4096, "Llama")


def test_a_column_may_name_the_cluster(interpret: Any) -> None:
    assert interpret(gpu="anything", cluster="my-cluster").run["cluster"] == "my-cluster"


def test_every_name_in_the_rules_is_in_the_catalog(rules: MeasuredNames) -> None:
    assert {rule.name for rule in rules.clusters if rule.name} <= set(catalog_names("cluster"))
    assert {rule.name for rule in rules.frameworks if rule.name} <= set(catalog_names("framework"))


def test_a_users_own_rules_come_first(tmp_path: Path) -> None:
    own = tmp_path / FILE
    own.parent.mkdir(parents=True)
    own.write_text("source: me\nclusters: [{words: [a100], name: mine}]\n", encoding="utf-8")
    assert measured_names([tmp_path]).clusters[0].name == "mine"
    assert len(measured_names([tmp_path]).clusters) > 5


def test_a_rule_with_both_a_name_and_a_skip_is_refused(tmp_path: Path) -> None:
    own = tmp_path / FILE
    own.parent.mkdir(parents=True)
    own.write_text("source: me\nclusters: [{words: [a100], name: mine, skip: no}]\n", encoding="utf-8")
    with pytest.raises(InputError, match="either a name or a skip"):
        measured_names([tmp_path])
