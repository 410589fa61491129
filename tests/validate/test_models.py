"""What rows of models with experts become."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardsim.schema.model import load_model
from shardsim.schema.validation import MeasuredNames, measured_names
from shardsim.validate.requests import row_request
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


SIMUMAX: dict[str, str] = {
    "gpu": "B200 SXM",
    "num_gpus": "8",
    "layers": "4",
    "hidden": "7168",
    "ffn_hidden": "18432",
    "heads": "128",
    "kv_heads": "128",
    "vocab": "129280",
    "arch_class": "moe-mla",
    "experts": "256",
    "top_k": "8",
    "moe_ffn_hidden": "2048",
    "shared_expert_ffn": "2048",
    "ep": "8",
    "notes": "first layer dense, rest MoE; capacity factor 1 padded (balanced); MLA q_lora 1536 kv_lora 512.",
}


@pytest.mark.parametrize("priced", [True, False])
def test_experts_and_latent_attention_are_read(tmp_path: Path, rules: MeasuredNames, *, priced: bool) -> None:
    row = measured(tmp_path, **SIMUMAX)
    found = row_request(row, rules, priced=priced)
    assert found.run is not None, found.reason
    assert found.run["layout"] == {"ep": 8, "capacity_factor": 1.0, "pads_capacity": True}
    assert found.run["model"]["moe"] == {
        "experts": 256,
        "top_k": 8,
        "ffn": 2048,
        "shared_ffn": 2048,
        "first_dense": 1,
    }
    model = load_model(found.run["model"])
    catalog = load_model("deepseek-v3")
    assert replace(model, layers=61, moe=catalog.moe, mtp=1, name=catalog.name, source=catalog.source) == catalog
    assert [note for note in found.notes if "latent" in note]


QWEN = {
    "gpu": "GB200",
    "model": "Qwen3_30B_a3B",
    "num_gpus": "8",
    "layers": "48",
    "hidden": "2048",
    "heads": "32",
    "kv_heads": "4",
    "arch_class": "moe",
    "experts": "128",
    "top_k": "8",
    "moe_ffn_hidden": "768",
    "ep": "8",
    "precision": "fp8-mx",
    "framework": "Megatron-Bridge/Megatron-Core, NeMo 25.09",
}
FULL = "megatron-bridge-graphs"
LAYERS = "megatron-bridge-layer-graphs"


@pytest.mark.parametrize(
    ("cells", "framework", "layout"),
    [
        (
            {"notes": "MoE token distribution force-balanced; token-drop. "},
            FULL,
            {"dispatcher": "alltoall", "capacity_factor": 1.0, "pads_capacity": True},
        ),
        ({"framework": "Megatron-Bridge, NeMo 25.11", "notes": "token-dropless."}, LAYERS, {"dispatcher": "hybridep"}),
        (
            {
                "gpu": "H100 SXM 80GB",
                "model": "DeepSeekV3",
                "arch_class": "moe-mla",
                "precision": "fp8-cs",
                "notes": "token-dropless.",
            },
            "megatron-bridge",
            {"dispatcher": "deepep", "overlap_experts": True},
        ),
        (
            {"framework": "Megatron-Bridge, NeMo 25.11", "gpu": "H100 SXM 80GB", "precision": "fp8-cs"},
            "megatron-bridge",
            {"overlap_experts": True},
        ),
        (
            {
                "framework": "Megatron-Bridge, NeMo 26.02",
                "notes": "moe_flex_dispatcher_backend=hybridep; cuda_graph_impl=transformer_engine",
            },
            LAYERS,
            {"dispatcher": "hybridep"},
        ),
        (
            {
                "framework": "Megatron-Bridge, NeMo 26.02",
                "notes": "moe_a2a_overlap=True; recompute_modules=['layernorm', 'moe_act'].",
            },
            "megatron-bridge",
            {"overlap_experts": True, "recompute": "selective", "recompute_modules": ("layernorm", "moe_act")},
        ),
        (
            {
                "framework": "Megatron-Bridge, NeMo 26.06",
                "notes": "moe_a2a_overlap=True; cuda_graph_impl=full_iteration",
            },
            FULL,
            {"overlap_experts": True},
        ),
        (
            {"framework": "Megatron-Bridge, recipe qwen3_30b_a3b_pretrain_8gpu_gb300_fp8mx_config"},
            FULL,
            {"dispatcher": "hybridep", "overlap_experts": True},
        ),
    ],
)
def test_what_recipes_of_experts_set_is_told_by_release_gpu_and_notes(
    tmp_path: Path, rules: MeasuredNames, cells: dict[str, str], framework: str, layout: dict[str, Any]
) -> None:
    found = row_request(measured(tmp_path, **QWEN | cells), rules)
    assert found.run is not None, found.reason
    assert found.run["framework"] == framework
    assert found.run["layout"] == {"ep": 8} | layout


@pytest.mark.parametrize(
    ("gpus", "changes"),
    [
        ("256", {"cluster.gpus_per_domain": 64}),
        ("72", {}),
        ("64", {}),
        ("144", {}),
        ("120", {"cluster.gpus_per_domain": 60}),
    ],
)
def test_racks_hold_equal_parts_of_a_job(
    tmp_path: Path, rules: MeasuredNames, gpus: str, changes: dict[str, int]
) -> None:
    found = row_request(measured(tmp_path, **QWEN | {"num_gpus": gpus}), rules).run
    assert found is not None
    assert found.get("set", {}) == changes


def test_models_are_what_their_names_say_where_no_column_does(tmp_path: Path, rules: MeasuredNames) -> None:
    qwen = row_request(measured(tmp_path, **QWEN), rules).run
    assert qwen is not None
    assert (qwen["model"]["head_dim"], qwen["model"]["qk_norm"]) == (128, True)
    oss = row_request(measured(tmp_path, **QWEN | {"model": "GPT-OSS-120B", "arch_class": "moe-swa"}), rules).run
    assert oss is not None
    assert [oss["model"][key] for key in ("window", "full_every", "sinks", "head_dim", "bias")] == [
        128,
        2,
        True,
        64,
        True,
    ]


def test_a_deepseek_pipeline_is_dealt_out_as_its_recipe_has_it(tmp_path: Path, rules: MeasuredNames) -> None:
    cells = SIMUMAX | {"model": "DeepSeekV3", "layers": "61", "pp": "4", "vpp": "4", "num_gpus": "256", "notes": ""}
    found = row_request(measured(tmp_path, **cells | {"framework": "Megatron-Bridge, NeMo 25.09"}), rules).run
    assert found is not None
    assert found["layout"]["pp_layout"] == "Et*4|(t*4|)*14tmL"
    assert (found["model"]["mtp"], found["model"]["moe"]["first_dense"]) == (1, 3)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"notes": "first layer dense; MLA q_lora 1536"}, "without its widths"),
        ({"top_k": ""}, "experts without top_k"),
    ],
)
def test_what_a_row_with_experts_leaves_out_is_said(
    tmp_path: Path, rules: MeasuredNames, cells: dict[str, str], said: str
) -> None:
    assert said in row_request(measured(tmp_path, **SIMUMAX | cells), rules, priced=False).reason


@pytest.mark.parametrize(
    ("notes", "first", "capacity"),
    [
        ("first 3 layers dense; capacity factor 1.5 padded;", 3, (1.5, True)),
        ("capacity factor 1.0, tokens dropped;", 0, (1.0, False)),
        ("capacity factor 1; first layer dense", 1, (1.0, False)),
        ("first layer dense", 1, (None, None)),
    ],
)
def test_notes_say_which_layers_are_dense_and_what_experts_take(
    tmp_path: Path, rules: MeasuredNames, notes: str, first: int, capacity: tuple[float | None, bool | None]
) -> None:
    row = measured(tmp_path, **SIMUMAX | {"notes": f"{notes} MLA q_lora 1536 kv_lora 512"})
    found = row_request(row, rules, priced=False)
    assert found.run is not None, found.reason
    assert found.run["model"]["moe"]["first_dense"] == first
    assert (found.run["layout"].get("capacity_factor"), found.run["layout"].get("pads_capacity")) == capacity
