"""Constants of fused attention come out of the figures they name, and predict lengths that were left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardsim.calibrate.attention import AttentionPoints, fit_attention, joined, predict, read_published
from shardsim.calibrate.attentions import LAUNCH, RECIPES, figure_files, gathered
from shardsim.errors import InputError
from shardsim.schema.hardware import load_device
from shardsim.schema.kernels import load_kernel_profile

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "operators" / "attention_flops.csv"


@pytest.fixture(scope="module")
def figures():
    if not PUBLISHED.exists():
        pytest.skip("the published figures are not beside the checkout")
    return read_published(figure_files([PUBLISHED]))


def points(passes, **columns) -> AttentionPoints:
    seq = np.array(columns["seq"], dtype=float)
    full = {
        "head_dim": 128, "v_head_dim": 128, "window": 0, "causal": True, "cached": False, "batch": 16384.0 / seq,
        "heads": 16.0, "kv_heads": 16.0, "seconds": 1.0, "level": "", "passes": passes, **columns,
    }  # fmt: skip
    return AttentionPoints(*(np.broadcast_to(full[name], seq.shape).copy() for name in AttentionPoints.__slots__))


def test_constants_are_recovered_from_their_own_times():
    lengths = [256, 512, 1024, 2048, 4096, 8192, 16384]
    shapes = joined([
        points(which, seq=lengths, causal=causal, heads=heads, kv_heads=heads)
        for which in ("fwd", "bwd") for causal in (True, False) for heads in (4.0, 16.0, 48.0)
    ])  # fmt: skip
    true = {
        "efficiency 128": 0.65, "tile": 2e-6, "tail": 0.7, "memory_efficiency": 1.5, "overhead": LAUNCH,
        "backward_ratio": 0.8, "backward_tile": 5e-6,
    }  # fmt: skip
    device = load_device("h100-sxm-80gb")
    times = predict(shapes, device, "cudnn", true)
    measured = AttentionPoints(*(times if n == "seconds" else getattr(shapes, n) for n in AttentionPoints.__slots__))
    found = fit_attention(measured, device, "cudnn", {"overhead": LAUNCH})
    for name, value in true.items():
        assert found.fit.constants[name] == pytest.approx(value, rel=0.05), name


@pytest.mark.parametrize("library", ["flash2", "flash3", "cudnn"])
def test_shipped_constants_on_h100_are_those_of_the_published_curves(figures, library):
    (part,) = (part for part in RECIPES["h100-sxm"].parts if part.library == library)
    found = fit_attention(gathered(part, figures, Path()), load_device("h100-sxm-80gb"), library, {"overhead": LAUNCH})
    shipped = load_kernel_profile("h100-sxm").attention.libraries[library]
    for direction in ("forward", "backward"):
        own, there = getattr(found.library, direction), getattr(shipped, direction)
        assert dict(own.efficiency) == pytest.approx(dict(there.efficiency), rel=0.01)
        assert (own.tile, own.tail) == (pytest.approx(there.tile, rel=0.02), pytest.approx(there.tail, rel=0.02))


def test_published_curves_are_predicted_within_4_percent_with_whole_lengths_left_out(figures):
    errors = []
    for gpu, device, libraries in (
        ("A100-SXM4-80G", "a100-sxm-80gb", {"FlashAttention-2": "flash2"}),
        (
            "H100-SXM5-80G",
            "h100-sxm-80gb",
            {"FlashAttention-2": "flash2", "FlashAttention-3": "flash3", "cuDNN": "cudnn"},
        ),
    ):
        for name, library in libraries.items():
            table = figures[gpu, name]
            for length in np.unique(table.seq):
                test, target = table.seq == length, load_device(device)
                found = fit_attention(table.where(~test), target, library, {"overhead": LAUNCH})
                left = table.where(test)
                errors.append(predict(left, target, library, found.fit.constants) / left.seconds - 1.0)
    error = np.abs(np.concatenate(errors))
    assert len(error) == 153
    assert float(np.median(error)) < 0.04
    assert float(np.quantile(error, 0.9)) < 0.09


def test_a_file_of_figures_says_every_line_that_is_none(tmp_path):
    path = tmp_path / "figures.csv"
    path.write_text(
        "gpu,library,pass,head_dim,causal,seqlen,batch,num_heads,tflops\nA,B,fwd,x,1,1,1,1,1\nA,B,up,64,1,1,1,1,9\n"
    )
    with pytest.raises(InputError) as caught:
        read_published([path, tmp_path / "absent.csv"])
    assert [problem.where for problem in caught.value.problems][:2] == [f"{path}, line 2", f"{path}, line 3"]
    assert len(caught.value.problems) == 3
