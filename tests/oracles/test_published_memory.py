"""Memory formulas against published figures (facts D.1 to D.4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.training import Batch, Layout, Model
from shardsim.workload.allocations import (
    activation_bytes_per_layer,
    first_stage_activation_bytes,
    partitioned_state,
    state_bytes,
)
from shardsim.workload.parameters import unsplit_layer_parameters

GIB = 2.0**30
MEGATRON = load_framework("megatron-2021")
BF16 = replace(MEGATRON, recipe="bf16", gradient_bytes=4)
# name, micro-batch, pipeline stages, chunks
KORTHIKANTI = [
    ("megatron-22b", 4, 1, 1),
    ("megatron-175b", 1, 8, 3),
    ("megatron-530b", 1, 35, 3),
    ("megatron-1t", 1, 64, 1),
]


def table_2(m: Model, b: int, s: int, t: int) -> dict[tuple[bool, str], float]:
    """Table 2 of arXiv 2205.05198 as printed, by (sequence parallel, recompute)."""
    h, a = m.hidden, m.heads
    sbh, core = s * b * h, 5 * a * s / (h * t)
    return {
        (False, "none"): sbh * (10 + 24 / t + core),
        (True, "none"): sbh * (34 / t + core),
        (False, "selective"): sbh * (10 + 24 / t),
        (True, "selective"): sbh * (34 / t),
        (False, "full"): 2 * sbh,
    }


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("name", ["megatron-22b", "megatron-8.3b", "megatron-1t"])
def test_korthikanti_table_2(name: str, t: int) -> None:
    model, batch = load_model(name), Batch(64, 4, 2048)
    for (sp, recompute), expected in table_2(model, 4, 2048, t).items():
        layout = Layout(tp=t, pp=1, dp=1, sp=sp, recompute=recompute)  # type: ignore[arg-type]
        assert activation_bytes_per_layer(model, layout, batch, MEGATRON) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("case", "plain", "selective_sp"),
    [
        (KORTHIKANTI[0], 59.25, 9.5625),
        (KORTHIKANTI[1], 66.84375, 12.3516),
        (KORTHIKANTI[2], 114.0234, 23.0762),
        (KORTHIKANTI[3], 131.25, 26.5625),
    ],
)
def test_korthikanti_figure_1_activations(case: tuple[str, int, int, int], plain: float, selective_sp: float) -> None:
    name, micro, pp, vpp = case
    model, batch = load_model(name), Batch(micro * 64, micro, 2048)
    layout = Layout(tp=8, pp=pp, dp=1, vpp=vpp)
    lean = replace(layout, sp=True, recompute="selective")
    assert first_stage_activation_bytes(model, layout, batch, MEGATRON) / GIB == pytest.approx(plain, rel=1e-6)
    assert first_stage_activation_bytes(model, lean, batch, MEGATRON) / GIB == pytest.approx(selective_sp, rel=5e-6)


@pytest.mark.parametrize(
    ("case", "expected"),
    list(zip(KORTHIKANTI, [45.5625, 45.5625, 31.640625, 32.958984], strict=True)),
)
def test_korthikanti_figure_1_parameters_and_optimizer(case: tuple[str, int, int, int], expected: float) -> None:
    name, _, pp, _ = case
    model, layout = load_model(name), Layout(tp=8, pp=pp, dp=1)
    matrices = unsplit_layer_parameters(model) - 13 * model.hidden  # the figure leaves out biases and norms
    per_rank = model.layers * matrices / (8 * pp)
    assert per_rank * state_bytes(BF16, layout).total / GIB == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "sp", "selective", "both", "full"),
    [
        ("megatron-22b", 66.84, 49.42, 16.18, 7.64),
        ("megatron-175b", 62.04, 56.53, 18.49, 8.71),
        ("megatron-530b", 58.31, 62.04, 20.27, 9.42),
        ("megatron-1t", 58.31, 62.04, 20.27, 9.42),
    ],
)
def test_korthikanti_figure_7_shares_of_the_tensor_parallel_baseline(
    name: str, sp: float, selective: float, both: float, full: float
) -> None:
    model, batch, layout = load_model(name), Batch(4, 1, 2048), Layout(tp=8, pp=1, dp=1)

    def share(**changes: object) -> float:
        changed = activation_bytes_per_layer(model, replace(layout, **changes), batch, MEGATRON)  # type: ignore[arg-type]
        return float(100 * changed / activation_bytes_per_layer(model, layout, batch, MEGATRON))

    # Read off a figure by others: half a point.
    assert share(sp=True) == pytest.approx(sp, abs=0.5)
    assert share(recompute="selective") == pytest.approx(selective, abs=0.5)
    assert share(sp=True, recompute="selective") == pytest.approx(both, abs=0.5)
    assert share(recompute="full") == pytest.approx(full, abs=0.5)


@pytest.mark.parametrize(
    ("recipe", "gradient_bytes", "plain", "fixed", "shared"),
    [("fp16", 2, 20, 4, 16), ("bf16", 4, 18, 6, 12), ("fp32", 4, 16, 8, 8)],
)
@pytest.mark.parametrize("dp", [1, 2, 64])
def test_bytes_a_parameter_of_megatron_recipes(
    recipe: str, gradient_bytes: int, plain: float, fixed: float, shared: float, dp: int
) -> None:
    framework = replace(MEGATRON, recipe=recipe, gradient_bytes=gradient_bytes)  # type: ignore[arg-type]
    layout = Layout(tp=1, pp=1, dp=dp)
    assert state_bytes(framework, layout).total == plain
    assert state_bytes(framework, replace(layout, zero=1)).total == pytest.approx(fixed + shared / dp, rel=1e-15)


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_on_64_replicas_of_7_5_billion_parameters(zero: int, gigabytes: float) -> None:
    assert round(7.5 * partitioned_state(2, 2, 12, dp=64, zero=zero).total, 1) == gigabytes
