"""Framework profiles: flags with their sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardsim.errors import InputError
from shardsim.schema.catalog import find, names
from shardsim.schema.framework import load_framework


@pytest.mark.parametrize("name", names("framework"))
def test_every_framework_loads_and_cites_its_sources(name: str) -> None:
    framework = load_framework(name)
    assert framework.name == name
    assert any(mark in framework.source for mark in ("arXiv", "github"))


def test_the_first_megatron_fuses_nothing_in_attention_and_overlaps_when_it_fits() -> None:
    old = load_framework("megatron-2019")
    assert (old.attention, old.fused_softmax, old.copies_heads) == ("unfused", False, True)
    assert (old.overlap_grad_reduce, old.bucket_bytes, old.gradient_bytes) == ("when_it_fits", 25 * 2**20, 2)


def test_megatron_of_2021_overlaps_only_in_its_pytorch_variant() -> None:
    own, torch = load_framework("megatron-2021"), load_framework("megatron-2021-torch-ddp")
    assert (own.overlap_grad_reduce, torch.overlap_grad_reduce) == ("never", "always")
    assert (own.fused_softmax, own.scatter_gather, own.default_recompute) == (True, True, "full")


def test_megatron_core_runs_flash_attention_with_a_distributed_optimizer() -> None:
    core = load_framework("megatron-core")
    assert (core.attention, core.default_zero, core.sequence_parallel, core.recipe) == ("flash", 1, True, "bf16")


def test_a_ratio_of_a_stack_comes_with_its_source() -> None:
    deepseek, core = load_framework("deepseek"), load_framework("megatron-core")
    assert deepseek.narrow_weights_provenance is not None
    assert "pull request 95" in deepseek.narrow_weights_provenance.source
    assert (core.narrow_weights_time, core.narrow_weights_provenance) == (1.0, None)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("bucket: 25 MiB", "bucket: 25", "has no unit"),
        ("attention: unfused", "attention: fused", "attention"),
        ("dropout: true", "dropout: yes", "dropout"),
        ("fused_softmax: false", "fused_softmaxx: false", "fused_softmaxx"),
        ("recipe: fp16", "recipe: fp32", "the fp32 recipe with gradients of 2 bytes"),
        ("causal_flop_halved: false", "causal_flop_halved: true", "skips nothing"),
    ],
)
def test_a_wrong_profile_says_where_and_what(tmp_path: Path, old: str, new: str, expected: str) -> None:
    text = find("framework", "megatron-2019").read_text()
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=r"mine\.yaml") as caught:
        load_framework(str(path))
    assert expected in str(caught.value)


def test_an_unknown_framework_suggests_near_ones() -> None:
    with pytest.raises(InputError, match="did you mean megatron-202"):
        load_framework("megatron-2024")
