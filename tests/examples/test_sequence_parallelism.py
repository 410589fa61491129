"""What reports/sequence-parallelism says, against its tables."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "reports" / "sequence-parallelism"
SIZES = {"megatron-22b": (4 * 2048, 6144), "llama-3-70b": (8192, 8192), "gpt3-175b": (2048, 12288)}
CASES = 27
CHUNKED = ("sp-userbuffers", "sp-userbuffers-filled", "sp-ring", "sp-ring-filled")


def read(name):
    with (REPORT / name).open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def passes():
    """Figures of a pass through a layer, by case (model, cluster, TP), design and pass."""
    found = defaultdict(lambda: defaultdict(dict))
    for row in read("layers.csv"):
        figures = {key: float(value) for key, value in row.items() if key.endswith(("_s", "_bytes"))}
        found[row["model"], row["cluster"], int(row["tp"])][row["design"]][row["pass"]] = figures
    assert len(found) == CASES
    return found


@pytest.fixture(scope="module")
def layers(passes):
    """The same, both passes together."""
    return {
        case: {name: {key: kinds["F"][key] + kinds["B"][key] for key in kinds["F"]} for name, kinds in designs.items()}
        for case, designs in passes.items()
    }


def shown(layers, design):
    """Share of the network's time that is exposed, by case."""
    return {case: found[design]["exposed_s"] / found[design]["collectives_s"] for case, found in layers.items()}


def against_all_reduces(layers, design):
    """Time of a layer over that with all-reduces behind weight gradients, in whole percent, by case."""
    return {
        case: round(100 * found[design]["layer_s"] / found["ar-behind"]["layer_s"]) for case, found in layers.items()
    }


def test_parts_of_a_layers_time_add_up(layers):
    work = ("gemm_s", "attention_s", "memory_bound_s", "exposed_s", "interference_s")
    for designs in layers.values():
        for own in designs.values():
            assert own["layer_s"] == pytest.approx(sum(own[key] for key in work), rel=1e-9)


def test_rings_move_as_many_bytes_forward_and_half_as_many_again_backward(passes):
    rings = 0
    for (model, _, tp), designs in passes.items():
        tokens, hidden = SIZES[model]
        ring = 2 * 2 * (tp - 1) / tp * tokens * hidden * 2
        assert designs["sp-behind"]["F"]["wire_bytes"] == pytest.approx(ring)
        assert designs["sp-behind"]["B"]["wire_bytes"] == pytest.approx(1.5 * ring)
        assert designs["block"]["F"]["wire_bytes"] == pytest.approx(0.5 * ring)
        assert designs["block"]["B"]["wire_bytes"] == pytest.approx(0.75 * ring)
        rings += designs["ar-behind"]["F"]["wire_bytes"] == pytest.approx(ring)
    assert rings == 21


def test_all_reduces_that_switches_sum_move_half_and_an_eighth(layers):
    ratios = {
        case: found["sp-behind"]["wire_bytes"] / found["ar-behind"]["wire_bytes"] for case, found in layers.items()
    }
    for (_, cluster, tp), ratio in ratios.items():
        in_switch = tp == 8 and cluster != "dgx-a100"
        assert ratio == pytest.approx(10 * (tp - 1) / tp / (4 * (1 + 1 / tp)) if in_switch else 1.25)


def test_no_design_changes_bytes_but_the_parallel_block(layers):
    for designs in layers.values():
        for name, own in designs.items():
            if name.startswith("sp"):
                assert own["wire_bytes"] == pytest.approx(designs["sp-in-line"]["wire_bytes"])


def test_half_of_all_reduces_and_six_tenths_of_sp_stay_exposed(layers):
    assert all(0.5 - 1e-9 <= share < 0.64 for share in shown(layers, "ar-behind").values())
    assert all(0.59 < share < 0.69 for share in shown(layers, "sp-behind").values())
    assert all(0.78 < share < 0.85 for share in shown(layers, "sp-regather").values())
    assert all(share == pytest.approx(1) for share in shown(layers, "sp-in-line").values())


def test_products_in_parts_hide_what_sp_moves(layers):
    for design in CHUNKED:
        assert max(shown(layers, design).values()) < 0.34
    assert max(shown(layers, "sp-userbuffers-filled").values()) > 0.3
    assert min(shown(layers, "sp-ring").values()) < 0.001
    assert max(shown(layers, "block-ring").values()) < 0.005


def test_all_reduces_forward_have_nothing_to_hide_behind(passes):
    for designs in passes.values():
        own = designs["ar-behind"]["F"]
        assert own["exposed_s"] == pytest.approx(own["collectives_s"])


def test_gathers_and_scatters_take_longer_than_the_all_reduces_of_the_same_bytes(passes):
    for (_, cluster, _), designs in passes.items():
        ratio = designs["sp-in-line"]["F"]["collectives_s"] / designs["ar-in-line"]["F"]["collectives_s"]
        assert 1.10 < ratio < (1.34 if cluster != "gb200-nvl72" else 1.9)


def test_sp_in_line_is_slower_than_all_reduces_that_hide(layers):
    assert min(against_all_reduces(layers, "sp-in-line").values()) > 100


def test_sp_that_hides_as_much_wins_but_at_tp_8_on_an_nvl72(layers):
    found = against_all_reduces(layers, "sp-behind")
    for (_, cluster, tp), percent in found.items():
        if cluster != "gb200-nvl72":
            assert 92 <= percent <= 100
        elif tp == 8:
            assert 104 <= percent <= 106


def test_rings_and_the_parallel_block_win_everywhere(layers):
    for designs, low, high in (
        (("sp-ring", "sp-ring-filled"), 74, 98),
        (("block-ring", "block-ring-filled"), 65, 97),
    ):
        found = [percent for name in designs for percent in against_all_reduces(layers, name).values()]
        assert (min(found), max(found)) == (low, high)


def test_parts_that_fill_each_others_waves_are_never_slower(layers):
    for designs in layers.values():
        for name in ("sp-userbuffers", "sp-ring", "block-ring"):
            assert designs[f"{name}-filled"]["layer_s"] <= designs[name]["layer_s"] * (1 + 1e-9)


def test_short_products_in_parts_lose_tiles(layers):
    own = layers["gpt3-175b", "dgx-h100", 8]["sp-ring"]
    assert own["divided_s"] / own["layer_s"] == pytest.approx(0.13, abs=0.005)
    for cluster, limit in (("dgx-h100", 0.02), ("gb200-nvl72", 0.02), ("dgx-a100", 0.06)):
        for model in ("megatron-22b", "llama-3-70b"):
            one = layers[model, cluster, 8]
            assert one["sp-ring"]["layer_s"] / one["sp-ring-filled"]["layer_s"] < 1 + limit


def test_collectives_slow_a_layer_by_three_percent_at_most(layers):
    shares = [own["interference_s"] / own["layer_s"] for designs in layers.values() for own in designs.values()]
    assert 0 < max(shares) < 0.035


def test_what_sp_saves_first_is_norms_dropout_and_residuals(layers):
    for case, designs in layers.items():
        before, after = designs["ar-behind"], designs["sp-behind"]
        saved = before["memory_bound_s"] - after["memory_bound_s"]
        assert saved > 0
        assert after["exposed_s"] > before["exposed_s"]
        assert after["gemm_s"] == pytest.approx(before["gemm_s"]), case


def test_the_attention_scattering_is_what_a_ring_leaves_exposed():
    rows = [row for row in read("collectives.csv") if row["design"] == "sp-ring"]
    exposed = {row["name"] for row in rows if float(row["alone_s"]) > 1e-6}
    assert len(rows) == 10
    assert exposed == {"attention scatter"}


def test_the_narrowest_product_hides_least_and_a_faster_gpu_hides_less():
    rows = {(row["model"], row["cluster"], int(row["tp"])): row for row in read("hiding.csv")}
    assert len(rows) == CASES
    for (model, cluster, tp), row in rows.items():
        share = {name: float(row[name]) for name in row if name.endswith(("gather", "scatter"))}
        assert max(share, key=share.get) == "attention scatter"
        assert max(share["mlp gather"], share["mlp scatter"]) < 1
        if cluster == "dgx-h100":
            assert float(rows[model, "dgx-a100", tp]["attention scatter"]) < share["attention scatter"]


def test_megascale_gained_what_its_two_steps_are_predicted_to_gain():
    block, overlap = ({key: float(row[key]) for key in row if key != "added"} for row in read("megascale.csv"))
    assert block["published"] == pytest.approx(0.096, abs=0.001)
    assert block["least"] == block["most"] == pytest.approx(block["published"], rel=0.2)
    assert overlap["least"] < overlap["published"] < overlap["most"]


def test_a_layer_has_four_collectives_without_sp_ten_with_it_and_five_side_by_side():
    count = defaultdict(int)
    for row in read("collectives.csv"):
        count[row["design"]] += 1
    assert (count["ar-behind"], count["sp-behind"], count["block"]) == (4, 10, 5)


def test_the_measured_layer_is_met_but_for_sp_backward():
    rows = {row["variant"]: {key: float(row[key]) for key in row if key != "variant"} for row in read("published.csv")}
    error = {
        (name, kind): row[f"predicted_{kind}_s"] / row[f"published_{kind}_s"] - 1
        for name, row in rows.items()
        for kind in "FB"
    }
    late = {(name, "B") for name in ("SP", "SP, selective recompute")}
    assert all(abs(one) < 0.03 for key, one in error.items() if key not in late)
    assert all(-0.09 < error[key] < -0.07 for key in late)
    assert abs(error["SP, scatter in line", "B"]) < 0.01


def test_a_layer_keeps_a_third_at_tp_8_as_published():
    for row in read("memory.csv"):
        tp = int(row["tp"])
        if row["framework"] == "megatron-2022" and row["model"] != "llama-3-70b":
            assert float(row["without_units"]) == pytest.approx(10 + 24 / tp)  # arXiv 2205.05198, Table 2
            assert float(row["with_sp_units"]) == pytest.approx(34 / tp)


def test_sp_never_lets_less_fit_and_lets_gpt3_fit_on_a100_without_full_recompute():
    rows = read("fits.csv")
    assert all(int(row["with_sp"]) >= int(row["without"]) for row in rows)
    (gpt3,) = (r for r in rows if (r["model"], r["cluster"], r["recompute"]) == ("gpt3-175b", "dgx-a100", "selective"))
    assert int(gpt3["without"]) == 0 < int(gpt3["with_sp"])


def test_the_page_shows_the_tables_as_they_are():
    page = (REPORT / "README.md").read_text()
    quoted = re.findall(r"<!-- (\S+) -->\n```\n(.*?)```", page, re.DOTALL)
    assert {name for name, _ in quoted} == {path.name for path in REPORT.glob("*.txt")}
    for name, text in quoted:
        assert text == (REPORT / name).read_text(), name
    assert all(f"({name})" in page and (REPORT / name).exists() for name in ("timeline.png", "designs.png"))
