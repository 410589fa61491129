"""What fp8 brings over bf16: published pairs of runs that differ in nothing else."""

from __future__ import annotations

from statistics import median

import pytest

from shardsim.cost.operators import compute_seconds
from shardsim.engine.predict import predict
from shardsim.program.resolve import resolve
from shardsim.schema.run import request_from_mapping
from shardsim.values.operators import Gemm

NEMOTRON_340B = {
    "name": "nemotron-4-340b", "layers": 96, "hidden": 18432, "heads": 96, "kv_heads": 8, "ffn": 73728, "vocab": 256000,
    "activation": "gelu", "norm": "layernorm", "position": "rope", "tied_embeddings": False, "bias": False,
}  # fmt: skip


def seconds(gpus: int, batch: int, recompute: str, precision: str) -> float:
    run = {
        "model": NEMOTRON_340B,
        "cluster": "dgx-h100",
        "gpus": gpus,
        "layout": {"tp": 8, "pp": 8, "vpp": 12, "recompute": recompute},
        "batch": {"global": batch, "micro": 1, "seq": 4096},
        "precision": precision,
        "framework": "megatron-core",
    }
    return predict(resolve(request_from_mapping(run)), engine="closed").iteration_s


@pytest.mark.parametrize(
    ("gpus", "batch", "recompute", "bf16", "fp8", "tolerance"),
    [
        (128, 32, "selective", 4.61, 3.16, 0.045),
        (256, 64, "selective", 4.67, 3.21, 0.045),
        (256, 64, "none", 4.606, 3.107, 0.045),
        (512, 128, "selective", 4.70, 3.26, 0.055),
        (1024, 256, "selective", 4.73, 3.34, 0.075),
    ],
)
def test_nemotron_340b_gains_on_h100_what_was_published(
    gpus: int, batch: int, recompute: str, bf16: float, fp8: float, tolerance: float
) -> None:
    """NVIDIA, DGX Cloud benchmarking recipes: seconds an iteration.

    The gain falls with scale, which is not so here; on the smallest clusters fp8 gains 3 % too much: the bf16 runs are
    met within 1 %, those in fp8 come out 2 to 4 % too fast.
    """
    gain = seconds(gpus, batch, recompute, "bf16") / seconds(gpus, batch, recompute, "fp8")
    assert gain == pytest.approx(bf16 / fp8, rel=tolerance)


@pytest.mark.parametrize(("model", "gpus", "tp", "pp"), [("llama-3-8b", 8, 1, 1), ("llama-3-70b", 64, 4, 4)])
def test_fp8_on_h100_is_a_fifth_to_a_half_faster_and_scales_of_blocks_gain_least(
    model: str, gpus: int, tp: int, pp: int
) -> None:
    def of(precision: str) -> float:
        run = {"model": model, "cluster": "dgx-h100", "gpus": gpus, "layout": {"tp": tp, "pp": pp}}
        run |= {"batch": {"global": 128, "micro": 1, "seq": 8192}, "precision": precision, "framework": "megatron-core"}
        run |= {"set": {"stack": "none"}}  # what kernels gain, not what a stack leaves of it
        return predict(resolve(request_from_mapping(run)), engine="closed").iteration_s

    gains = [of("bf16") / of(precision) for precision in ("fp8-block", "fp8-current", "fp8-delayed")]
    assert gains == sorted(gains)
    assert gains[0] > 1.2
    assert gains[-1] < 1.51


def test_weight_gradients_in_blocks_reach_on_h800_what_was_published() -> None:
    """github deepseek-ai/DeepGEMM, pull request 95: TFLOP/s by experts (0: a plain product), m, n, k.

    The profile knows forward products of H100 only.
    """
    published = {
        (0, 7168, 2112, 4096): 920, (0, 1536, 24576, 4096): 986, (0, 512, 32768, 4096): 878,
        (0, 16384, 7168, 4096): 994, (0, 7168, 4096, 4096): 942, (0, 2048, 7168, 4096): 920,
        (0, 7168, 2112, 8192): 1052, (0, 1536, 24576, 8192): 1092, (0, 512, 32768, 8192): 1014,
        (4, 7168, 4096, 4096): 939, (4, 2048, 7168, 4096): 900, (4, 7168, 4096, 8192): 1044,
        (4, 2048, 7168, 8192): 1033, (8, 7168, 4096, 4096): 942,
    }  # fmt: skip
    asked = {"model": "deepseek-v3", "cluster": "hgx-h800", "gpus": 64, "layout": {"ep": 64}, "framework": "deepseek"}
    run = resolve(request_from_mapping(asked | {"batch": {"global": 64, "micro": 1, "seq": 4096}}))

    def of_published(experts: int, m: int, n: int, k: int) -> float:
        many = {"batch": experts, "grouped": "one_kernel"} if experts else {}
        product = Gemm("", m, k, n, role="wgrad", output_bytes=4, accumulates=True, data_type="fp8_block", **many)
        seconds = compute_seconds(product, run.cluster.device, run.profile.kernels, "bf16")
        return float(product.flop / seconds / 1e12) / published[experts, m, n, k]

    ratios = [of_published(*shape) for shape in published]
    assert median(ratios) == pytest.approx(1.04, abs=0.01)
    assert ratios == pytest.approx([1.0] * len(ratios), abs=0.14)
    assert run.framework.narrow_weights_time == 1.2  # of kernels that these replaced
