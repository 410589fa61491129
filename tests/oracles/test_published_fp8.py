"""What fp8 brings over bf16: published pairs of runs that differ in nothing else."""

from __future__ import annotations

import pytest

from shardsim.engine.predict import predict
from shardsim.program.resolve import resolve
from shardsim.schema.run import request_from_mapping

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
        return predict(resolve(request_from_mapping(run)), engine="closed").iteration_s

    gains = [of("bf16") / of(precision) for precision in ("fp8-block", "fp8-current", "fp8-delayed")]
    assert gains == sorted(gains)
    assert gains[0] > 1.2
    assert gains[-1] < 1.51
