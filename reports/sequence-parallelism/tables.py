"""Makes the tables of this folder from its csv files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import CLUSTERS, DEGREES, DESIGNS, MODELS, read

BY = {(row["model"], row["cluster"], row["tp"], row["design"], row["pass"]): row for row in read("layers.csv")}
BASE = "ar-behind"


def of(model: str, cluster: str, tp: int, design: str, what: str, passes: str = "FB") -> float:
    """A figure of a layer, summed over passes."""
    return sum(BY[model, cluster, tp, design, kind][what] for kind in passes)


def save(name: str, *lines: str) -> None:
    """Write a table."""
    Path(name).write_text("\n".join(line.rstrip() for line in lines).rstrip() + "\n")


def volume() -> list[str]:
    """Bytes on the wire."""
    lines = [
        "Bytes over a GPU's NVLinks, per direction, one layer and micro-batch, MB: forward, backward, and both",
        "against four all-reduces. In switch: the all-reduce is summed in the switches (NVLS).",
        "",
        f"{'':24}{'four all-reduces':>20}{'SP':>24}{'parallel block, SP':>26}",
        f"{'':24}{'fwd':>10}{'bwd':>10}{'fwd':>9}{'bwd':>9}{'':>6}{'fwd':>11}{'bwd':>9}",
    ]
    for model in MODELS:
        for cluster in CLUSTERS:
            for tp in DEGREES:
                cells = ""
                both = of(model, cluster, tp, BASE, "wire_bytes")
                for design, width in ((BASE, 10), ("sp-behind", 9), ("block", 9)):
                    parts = [of(model, cluster, tp, design, "wire_bytes", kind) / 1e6 for kind in "FB"]
                    cells += "".join(f"{part:{width}.1f}" for part in parts)
                    cells += "" if design == BASE else f"{1e6 * sum(parts) / both:6.2f}  "
                half = of(model, cluster, tp, "sp-behind", "wire_bytes", "F")
                ring = abs(of(model, cluster, tp, BASE, "wire_bytes", "F") / half - 1) < 1e-9
                lines.append(f"{model:13}{cluster.split('-')[1]:6} TP{tp} {cells}{'' if ring else ' in switch'}")
        lines.append("")
    return lines


def times(tp: int) -> list[str]:
    """Time of a layer under every design."""
    lines = [
        f"One layer and micro-batch, forward and backward, TP {tp}: ms, and of that exposed/slowed/divided in %:",
        "waiting for the network, products slowed by collectives beside them, products slower for being in parts.",
        "Filled: parts of a product run at once and fill each other's waves of tiles; else one by one.",
        "",
    ]
    for cluster in CLUSTERS:
        lines.append(f"{cluster:30}" + "".join(f"{model:>24}" for model in MODELS))
        for name, design in DESIGNS.items():
            line = f"{design.title:30}"
            for model in MODELS:
                layer = of(model, cluster, tp, name, "layer_s")
                shares = (
                    100 * of(model, cluster, tp, name, what) / layer
                    for what in ("exposed_s", "interference_s", "divided_s")
                )
                line += f"{1e3 * layer:13.2f}{'/'.join(str(round(share)) for share in shares):>11}"
            lines.append(line)
        lines.append("")
    return lines


def relative() -> list[str]:
    """Time against all-reduces behind weight gradients."""
    shown = ("sp-in-line", "sp-behind", "sp-userbuffers", "sp-ring", "block", "block-ring")
    lines = [
        "Time of a layer in % of that with all-reduces behind weight gradients. Products in parts: from parts one by",
        "one to parts that fill each other's waves.",
        "",
        f"{'':24}{'SP in line':>11}{'SP behind':>11}{'userbuffers':>14}{'ring':>12}{'block':>9}{'block ring':>14}",
    ]
    for model in MODELS:
        for cluster in CLUSTERS:
            for tp in DEGREES:
                base = of(model, cluster, tp, BASE, "layer_s")
                line = f"{model:13}{cluster.split('-')[1]:6} TP{tp} "
                for name, width in zip(shown, (11, 11, 14, 12, 9, 14), strict=True):
                    names = [name, f"{name}-filled"] if f"{name}-filled" in DESIGNS else [name]
                    found = [f"{100 * of(model, cluster, tp, one, 'layer_s') / base:.0f}" for one in names]
                    line += f"{' to '.join(found):>{width}}"
                lines.append(line)
        lines.append("")
    return lines


def saved() -> list[str]:
    """What SP adds and saves where both hide what they can."""
    lines = [
        "From all-reduces behind weight gradients to SP with everything behind that fits, us a layer, by pass: norms,",
        "dropout and residuals on 1/t of the tokens; exposed communication; products slowed by what runs beside them.",
        "",
        f"{'':24}{'norms ...':>14}{'exposed':>14}{'slowed':>12}{'together':>15}{'%':>7}",
    ]
    for model in MODELS:
        for cluster in CLUSTERS:
            for tp in DEGREES:
                line = f"{model:13}{cluster.split('-')[1]:6} TP{tp} "
                for what, width in (("memory_bound_s", 14), ("exposed_s", 14), ("interference_s", 12), ("layer_s", 15)):
                    change = [
                        1e6
                        * (of(model, cluster, tp, "sp-behind", what, kind) - of(model, cluster, tp, BASE, what, kind))
                        for kind in "FB"
                    ]
                    line += f"{'/'.join(f'{one:+.0f}' for one in change):>{width}}"
                base = of(model, cluster, tp, BASE, "layer_s")
                change = of(model, cluster, tp, "sp-behind", "layer_s") - base
                lines.append(f"{line}{100 * change / base:+7.1f}")
        lines.append("")
    return lines


def collectives() -> list[str]:
    """Each collective, and how much of it shows."""
    shown = ("ar-behind", "sp-behind", "sp-userbuffers", "sp-ring", "block-ring")
    lines = [
        "GPT-3 175B, 2,048 tokens, DGX H100, TP 8: each collective in us, and how long no product runs beside it.",
        "",
        f"{'':30}{'pass':>5}  {'collective':26}{'steps':>6}{'MB':>7}{'us':>8}{'alone':>8}",
    ]
    before = ""
    for row in read("collectives.csv"):
        name = row["design"]
        if name in shown:
            title = DESIGNS[name].title if name != before else ""
            before = name
            lines.append(
                f"{title:30}{row['pass']:>5}  {row['name']:26}{row['steps']:6.0f}{row['wire_bytes'] / 1e6:7.1f}"
                f"{1e6 * row['seconds']:8.0f}{1e6 * row['alone_s']:8.0f}"
            )
    return lines


def hiding() -> list[str]:
    """Collectives over the products beside them."""
    names = ("attention gather", "attention scatter", "mlp gather", "mlp scatter")
    lines = [
        "Time of a collective of SP in % of that of the product beside it: what is above 100 cannot be hidden by it.",
        "",
        f"{'':24}" + "".join(f"{name:>20}" for name in names),
        f"{'':24}" + "".join(f"{name:>20}" for name in ("qkv", "output projection", "mlp up", "mlp down")),
    ]
    rows = read("hiding.csv")
    for model in MODELS:
        for row in rows:
            if row["model"] == model:
                cells = "".join(f"{100 * row[name]:20.0f}" for name in names)
                lines.append(f"{model:13}{row['cluster'].split('-')[1]:6} TP{row['tp']:.0f} {cells}")
        lines.append("")
    return lines


def published() -> list[str]:
    """Korthikanti's layer."""
    lines = [
        "One layer of Megatron-22B, micro-batch 4, TP 8, A100, ms: measured (arXiv 2205.05198, Table 4) and predicted.",
        "",
        f"{'':26}{'forward':>24}{'backward':>26}",
    ]
    for row in read("published.csv"):
        line = f"{row['variant']:26}"
        for kind, width in (("F", 8), ("B", 10)):
            measured, predicted = row[f"published_{kind}_s"], row[f"predicted_{kind}_s"]
            line += f"{1e3 * measured:{width}.1f}{1e3 * predicted:8.2f}{100 * (predicted / measured - 1):+8.1f}"
        lines.append(line)
    lines += [
        "",
        "Right of each pair: error in %.",
        "",
        "MegaScale 175B, A100, TP 8 (arXiv 2402.15627, ablation): faster by, in %. Published: an iteration on 256",
        "GPUs, from its MFU. Predicted: a layer, products in parts one by one to filled.",
        "",
        f"{'':26}{'published':>11}{'predicted':>14}",
    ]
    for row in read("megascale.csv"):
        ends = dict.fromkeys(f"{100 * row[key]:.1f}" for key in ("least", "most"))
        lines.append(f"{row['added']:26}{100 * row['published']:11.1f}{' to '.join(ends):>14}")
    return lines


def memory() -> list[str]:
    """Activations of a layer and the largest micro-batch."""
    lines = [
        "Activations that a rank keeps of one layer, in units of s b h bytes: without SP / with SP.",
        "",
        f"{'':40}" + "".join(f"{f'TP {tp}':>15}" for tp in (1, *DEGREES)),
    ]
    rows = read("memory.csv")
    for key in dict.fromkeys((row["model"], row["framework"], row["recompute"]) for row in rows):
        own = [row for row in rows if (row["model"], row["framework"], row["recompute"]) == key]
        cells = [f"{row['without_units']:.1f} / {row['with_sp_units']:.2f}" for row in own]
        lines.append(f"{key[0]:14}{key[1]:15}{key[2]:11}" + "".join(f"{cell:>15}" for cell in cells))
    lines += [
        "",
        "Largest micro-batch that fits, at most 64 (0: none), and memory of the fullest stage at micro-batch 1, GiB.",
        "",
        f"{'':50}{'without SP':>18}{'with SP':>16}",
    ]
    for row in read("fits.csv"):
        place = (
            f"{row['model']:14}{row['cluster']:13}TP{row['tp']:.0f} PP{row['pp']:.0f}  recompute {row['recompute']:10}"
        )
        cells = [f"{row[name]:.0f}{row[f'{name}_one_bytes'] / 2**30:9.1f}" for name in ("without", "with_sp")]
        lines.append(f"{place:52}" + "".join(f"{cell:>16}" for cell in cells))
    return lines


def chosen(tables: Sequence[list[str]]) -> list[str]:
    """Tables one below the other."""
    return [line for table in tables for line in (*table, "")]


save("volume.txt", *volume())
save("time.txt", *chosen([times(8), relative()]))
save("saved.txt", *saved())
save("collectives.txt", *collectives())
save("hiding.txt", *hiding())
save("published.txt", *published())
save("memory.txt", *memory())
