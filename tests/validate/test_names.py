"""How people write the names of GPUs, data types and frameworks."""

from __future__ import annotations

import pytest

from shardsim.schema.validation import first_match, measured_names

NAMES = measured_names()


@pytest.mark.parametrize(
    ("cell", "cluster"),
    [
        ("NVIDIA H100 80GB HBM3", "dgx-h100"),
        ("H100-SXM5", "dgx-h100"),
        ("H100SXM", "dgx-h100"),
        ("8xH100", "dgx-h100"),
        ("64×H100", "dgx-h100"),
        ("DGXH100", "dgx-h100"),
        ("A100-SXM4-80GB", "dgx-a100"),
        ("nvidia_a100_sxm4_80gb", "dgx-a100"),
        ("4xA100-40G", "dgx-a100-40gb"),
        ("NVIDIA H200 141GB", "hgx-h200"),
        ("GB200 NVL72", "gb200-nvl72"),
        ("NVIDIA B200 180 GiB", "dgx-b200"),
    ],
)
def test_gpus(cell: str, cluster: str) -> None:
    rule = first_match(NAMES.clusters, cell)
    assert rule is not None
    assert rule.name == cluster


@pytest.mark.parametrize("cell", ["H100 PCIe", "NVIDIA H100 NVL", "A100-PCIE-40GB"])
def test_cards_that_are_in_no_cluster_are_told(cell: str) -> None:
    rule = first_match(NAMES.clusters, cell)
    assert rule is not None
    assert rule.skip is not None


@pytest.mark.parametrize(
    ("cell", "precision"),
    [
        ("BF16-mixed", "bf16"),
        ("bf16-true", "bf16"),
        ("torch.bfloat16", "bf16"),
        ("16-mixed", "fp16"),
        ("16-true", "fp16"),
        ("float16", "fp16"),
        ("float32", "fp32"),
        ("FP8-E4M3", "fp8"),
        ("float8_e4m3fn", "fp8"),
        ("FP8 (current scaling)", "fp8-current"),
        ("FP8_CS", "fp8-current"),
        ("float8 blockwise", "fp8-block"),
        ("FP8-MX", "mxfp8"),
        ("NVFP4", "nvfp4"),
    ],
)
def test_precisions(cell: str, precision: str) -> None:
    rule = first_match(NAMES.precisions, cell)
    assert rule is not None
    assert rule.name == precision


@pytest.mark.parametrize(
    ("cell", "profile"),
    [
        ("Megatron-LM core v0.9", "megatron-core"),
        ("megatron_lm", "megatron-core"),
        ("mcore 0.12", "megatron-core"),
        ("NeMo 2.0", "megatron-core"),
        ("MegatronBridge 25.09", "megatron-bridge"),
        ("MegatronDeepSpeed", "megatron-deepspeed"),
        ("PyTorch FSDP2", "fsdp"),
        ("FSDP1", "fsdp"),
        ("FullyShardedDataParallel", "fsdp"),
        ("fully_shard(ed)", "fsdp"),
        ("llm-foundry v0.3", "fsdp-2023"),
        ("TorchTitan", "torchtitan"),
    ],
)
def test_frameworks(cell: str, profile: str) -> None:
    rule = first_match(NAMES.frameworks, cell)
    assert rule is not None
    assert rule.name == profile
