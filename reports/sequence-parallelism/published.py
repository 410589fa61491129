"""Sets published measurements beside predictions of a layer: published.csv, megascale.csv."""

from __future__ import annotations

from common import DESIGNS, Design, case, executed, tasks_of, write

KORTHIKANTI = {  # arXiv 2205.05198, Table 4: forward and backward pass of one layer of 22B, ms
    "no SP": (False, "none", 7.7, 11.9),
    "SP": (True, "none", 7.2, 11.8),
    "SP, scatter in line": (True, "none", 7.2, 11.8),
    "full recompute": (False, "full", 7.7, 19.5),
    "selective recompute": (False, "selective", 7.7, 13.2),
    "SP, selective recompute": (True, "selective", 7.2, 13.1),
}
"""Its third row asks what the second one would take if input gradients were not scattered beside weight gradients."""

MEGASCALE = {  # arXiv 2402.15627, ablation of 175B on 256 GPUs: what is added, and MFU without and with it, %
    "parallel block": ("sp-behind", ("block",), 47.7, 52.3),
    "TP overlap": ("block", ("block-ring", "block-ring-filled"), 53.3, 55.5),
}


def korthikanti() -> None:
    """Write the passes of Megatron-22B."""
    found = []
    for what, (sp, recompute, *published) in KORTHIKANTI.items():
        one = case("megatron-22b", "dgx-a100", 8, framework="megatron-2022", precision="fp16", recompute=recompute)
        design = Design(what, sp=sp, flags={"overlap_dgrad": not what.endswith("in line")})
        row: dict[str, object] = {"variant": what}
        for kind, milliseconds in zip(("F", "B"), published, strict=True):
            seconds = float(executed(one, {kind: tasks_of(one, design, kind)}).iteration_s)
            row |= {f"published_{kind}_s": milliseconds / 1e3, f"predicted_{kind}_s": seconds}
        found.append(row)
    write("published.csv", found)


def megascale() -> None:
    """Write how much faster a layer becomes, and an iteration became."""
    one = case("megascale-175b", "dgx-a100", 8)

    def seconds(name: str) -> float:
        tasks = {kind: tasks_of(one, DESIGNS[name], kind) for kind in ("F", "B")}
        return sum(float(executed(one, {kind: own}).iteration_s) for kind, own in tasks.items())

    found = []
    for what, (before, after, mfu, better) in MEGASCALE.items():
        gains = [seconds(before) / seconds(name) - 1 for name in after]
        found.append({"added": what, "published": better / mfu - 1, "least": gains[0], "most": gains[-1]})
    write("megascale.csv", found)


if __name__ == "__main__":
    korthikanti()
    megascale()
