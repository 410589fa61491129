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
from shardsim.workload.schedules import NAMES as SCHEDULES

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
        ("Megatron-LM 2020-09", "megatron-2020"),
        ("Megatron-LM (Narayanan 2021)", "megatron-2021"),
        ("Megatron-LM (Narayanan 2021), torch DDP", "megatron-2021-torch-ddp"),
        ("Narayanan et al.", "megatron-2021"),
        ("Megatron-LM (2022)", "megatron-2022"),
        ("Megatron-DeepSpeed (BigScience)", "megatron-deepspeed"),
        ("nanotron, TP mode REDUCE_SCATTER", "nanotron"),
        ("NeMo (Megatron-Core)", "megatron-core"),
        ("Megatron-Bridge/Megatron-Core, NeMo 25.09", "megatron-bridge"),
        ("Megatron-LM 23e00ed + TE 2.11, torch 2.10", "megatron-lm"),
        ("Megatron-FSDP", "megatron-core"),
        ("torchtitan (FSDP2)", "torchtitan"),
        ("Composer/PyTorch FSDP PURE", "fsdp-2023"),
        ("Composer/PyTorch FSDP DEFAULT", "fsdp-default"),
        ("PyTorch FSDP", "fsdp"),
        ("DeepSpeed 0.14", "deepspeed"),
    ],
)
def test_frameworks_become_profiles(interpret: Any, cell: str, framework: str) -> None:
    assert interpret(framework=cell).run["framework"] == framework


def test_a_stack_that_is_not_pytorch_is_skipped(interpret: Any) -> None:
    assert interpret(framework="MaxText (JAX), FSDP+DP").reason == "no framework profile is of JAX and its compiler"


@pytest.mark.parametrize(
    ("precision", "framework"),
    [
        ("fp16", "megatron-deepspeed-fp16"),
        ("bf16", "megatron-deepspeed-bf16"),
        ("", "megatron-deepspeed"),
        ("fp16 or bf16 (not stated per table)", "megatron-deepspeed-fp16"),
    ],
)
def test_megatron_deepspeed_reduces_other_gradients_in_bf16(interpret: Any, precision: str, framework: str) -> None:
    assert interpret(framework="Megatron-DeepSpeed (BigScience)", precision=precision).run["framework"] == framework


@pytest.mark.parametrize(
    ("cell", "keys"),
    [
        ("0", {"zero": 0}),
        ("1.0", {"zero": 1}),
        ("2", {"zero": 2}),
        ("3", {"zero": 3}),
        ("FSDP2", {"zero": 3}),
        ("FULL_SHARD", {"zero": 3}),
        ("SHARD_GRAD_OP", {"zero": 3, "reshard": False}),
    ],
)
def test_sharding_becomes_a_zero_stage(interpret: Any, cell: str, keys: dict[str, Any]) -> None:
    assert interpret(zero_stage=cell).run["layout"] == keys


@pytest.mark.parametrize("cell", ["-1", "4", "1.5", "inf"])
def test_what_is_no_zero_stage_is_refused_with_its_line(tmp_path: Path, cell: str) -> None:
    with pytest.raises(InputError, match=f"{cell} is no ZeRO stage") as refused:
        measured(tmp_path, zero_stage=cell)
    assert refused.value.problems[0].where.endswith("one.csv:2: zero_stage")


@pytest.mark.parametrize(
    ("cell", "vpp", "schedule"),
    [
        ("ZB-H1", "", "zb-h1"),
        ("zbh2", "", "zb-h2"),
        ("ZB-V", "2", "zb-v"),
        ("V-Half", "2", "v-half"),
        ("v-min", "", "v-min"),
        ("DualPipe", "", "dualpipe"),
        ("DualPipeV", "2", "dualpipev"),
        ("1f1b", "2", "interleaved"),
    ],
)
def test_spellings_of_schedules(interpret: Any, cell: str, vpp: str, schedule: str) -> None:
    assert interpret(pp="4", tp="1", vpp=vpp, schedule=cell).run["layout"]["schedule"] == schedule


def test_every_schedule_of_the_rules_has_a_name(rules: MeasuredNames) -> None:
    assert {rule.name for rule in rules.schedules} == set(SCHEDULES)


NEMO = {"framework": "NeMo (Megatron-Core)", "arch_class": "dense-swiglu", "num_gpus": "256", "tp": "4"}


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "counted"),
    [("126", "16", "4", True), ("126", "8", "8", True), ("126", "6", "", False), ("125", "16", "", False)],
)
def test_the_ends_of_the_model_count_as_layers_where_only_so_they_divide(
    interpret: Any, layers: str, pp: str, vpp: str, *, counted: bool
) -> None:
    """126 layers of Llama 3.1 405B on 16 stages of 4 chunks: 1 + 62 x 2 + 1, with embedding and loss."""
    found = interpret(**NEMO, layers=layers, pp=pp, vpp=vpp)
    assert found.run["layout"].get("embedding_as_layer", False) is counted
    assert found.run["layout"].get("loss_as_layer", False) is counted
    assert any("counted as layers" in note for note in found.notes) is counted


def test_layers_that_divide_in_no_known_way_are_dealt_out_evenly_and_said_to_be(interpret: Any) -> None:
    """The run happened: its layers lay somehow."""
    found = interpret(**NEMO, layers="125", pp="4", vpp="")
    assert found.run["layout"]["stage_layers"] == [32, 31, 31, 31]
    assert any("as evenly as they go" in note for note in found.notes)
    assert "stage_layers" not in interpret(**NEMO, layers="124", pp="4", vpp="").run["layout"]
    assert "stage_layers" not in interpret(**NEMO, layers="125", pp="4", vpp="", schedule="zb-v").run["layout"]


def test_bigscience_counts_the_embedding_as_its_notes_say(interpret: Any) -> None:
    """70 layers and two embeddings on 12 stages of 6."""
    row = {"framework": "Megatron-DeepSpeed (BigScience)", "precision": "bf16", "layers": "70", "pp": "12"}
    row |= {"num_gpus": "384", "tp": "8"}
    stated = interpret(**row, notes="pp-partition-method type:transformer|embedding (embedding counts as a layer)")
    assert stated.run["layout"]["embedding_as_layer"]
    assert stated.run["layout"]["loss_as_layer"]
    assert stated.notes == ()
    assert "embedding_as_layer" not in interpret(**row).run["layout"]


NANOTRON = {
    "framework": "nanotron, TP mode REDUCE_SCATTER",
    "arch_class": "dense-swiglu",
    "layers": "28",
    "hidden": "3072",
    "ffn_hidden": "8192",
    "heads": "24",
    "vocab": "131072",
}


def test_nanotron_deals_layers_out_by_cost_whether_or_not_they_divide(interpret: Any) -> None:
    """A layer is 4 h^2 + 3 h f = 113.2 M, the head V h = 402.7 M: 3.56 layers (nanotron, models/base.py)."""
    assert interpret(**NANOTRON, pp="8").run["layout"]["stage_layers"] == [4, 4, 4, 4, 4, 4, 4, 0]
    assert interpret(**NANOTRON, pp="4").run["layout"]["stage_layers"] == [8, 8, 8, 4]
    assert "stage_layers" not in interpret(**NANOTRON).run.get("layout", {})


@pytest.mark.parametrize(("fixed", "framework"), [("True", "nanotron"), ("False", "nanotron-2024")])
def test_notes_say_whether_nanotron_ran_before_its_pipeline_fix(interpret: Any, fixed: str, framework: str) -> None:
    run = interpret(**NANOTRON, pp="4", notes=f"after_pp_fix={fixed}; tie_embeddings=False").run
    assert run["framework"] == framework
    assert run["model"]["tied_embeddings"] is False


def test_activations_in_host_memory_are_a_reason_against_a_time(tmp_path: Path, rules: MeasuredNames) -> None:
    row = measured(tmp_path, notes="Matched recipe: cpu_offloading_num_layers=40; use_megatron_fsdp=True")
    assert "host memory" in row_request(row, rules).reason
    assert row_request(row, rules, priced=False).run is not None


def test_a_substitute_profile_is_noted(interpret: Any) -> None:
    found = interpret(framework="Composer/PyTorch FSDP PURE").notes
    assert "FSDP with gradients reduced in bf16 taken as llm-foundry's of 2023" in found


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
        ({"arch_class": "moe-mla"}, "latent attention without its widths"),
        ({"experts": "8"}, "experts without top_k and moe_ffn_hidden"),
        ({"zero_stage": "HYBRID_SHARD"}, "no rule for the sharding 'HYBRID_SHARD'"),
        ({"tp": "2", "dp": "8"}, "is not 64 GPUs"),
        ({"pp": "2", "schedule": "interleaved-1f1b"}, "without its number of chunks"),
        ({"pp": "2", "schedule": "zero bubble"}, "no rule for the schedule 'zero bubble'"),
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


def test_context_parallel_rows_are_expressed(interpret: Any) -> None:
    assert interpret(cp="2").run["layout"]["cp"] == 2


def test_every_reason_against_a_row_is_named(interpret: Any) -> None:
    reason = interpret(gpu="TPU", experts="8", layers="", precision="int4").reason
    assert reason.split("; ") == [
        "not stated: layers",
        "experts without top_k and moe_ffn_hidden",
        "no cluster of the catalog has the GPU 'TPU'",
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
