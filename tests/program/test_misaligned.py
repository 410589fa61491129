"""Sharded widths that lose 128-byte alignment are named, with the nearest that keep it and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardsim.program.misaligned import misaligned
from shardsim.program.resolve import resolve
from shardsim.schema.run import nested, request_from_mapping

GOOD = {
    "model": "llama-2-7b", "cluster": "dgx-h100", "gpus": 8, "tp": 1, "pp": 1, "micro_batch": 1, "global_batch": 8,
    "seq": 4096,
}  # fmt: skip


def resolved(ffn=None, **keys):
    run = resolve(request_from_mapping(nested(GOOD | keys)))
    return run if ffn is None else replace(run, model=replace(run.model, ffn=ffn))


def test_an_aligned_layout_is_not_warned_about():
    assert misaligned(resolved()) == ()
    assert misaligned(resolved(tp=4)) == ()


def test_a_migrated_ffn_shard_is_named_with_its_value_the_nearest_aligned_one_and_the_cost():
    found = misaligned(resolved(ffn=10922))
    down = next(text for text in found if "mlp down" in text)
    assert "10922 elements a rank, 21844 bytes" in down
    assert "nearest aligned are 10944" in down
    assert "0.685 of an aligned one's" in down
    assert "0.347 is the worst" in down


def test_a_run_carries_the_warning_and_tp_8_of_llama_2_7b_is_a_known_case():
    """microsoft/vidur: k 1376 at TP 8, 64-byte aligned, loses about 11 % on H100 and nothing on A100."""
    run = resolved(tp=8)
    assert any("1376 elements a rank" in text and "0.887 is the worst" in text for text in run.warnings)
    assert not any("elements a rank" in text for text in resolved(tp=8, cluster="dgx-a100").warnings)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_bytes_and_not_elements_decide(precision):
    found = misaligned(resolved(ffn=11008 - 64, precision=precision))
    assert bool(found) == (precision == "fp8")


@pytest.mark.parametrize(("precision", "cluster"), [("fp8-block", "dgx-h100"), ("nvfp4", "dgx-b200")])
def test_scales_of_blocks_lie_apart_and_misalign_nothing(precision, cluster):
    """1,792 elements of one byte are 14 lines of 128 bytes; 3,584 of half a byte too."""
    shape = {
        "model": "llama-3-8b",
        "cluster": cluster,
        "framework": "megatron-core",
        "tp": 8 if "8" in precision else 4,
    }
    assert misaligned(resolved(precision=precision, **shape)) == ()
