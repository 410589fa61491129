"""Makes collectives.txt and iterations.txt of the tables of this folder."""

from __future__ import annotations

import csv
from pathlib import Path

TIMES = (1, 2, 4, 7)
LEAVES = {4: "4 nodes a leaf", 1: "each node another leaf"}


def read(name: str) -> list[dict[str, str]]:
    """Rows of a table."""
    with Path(name).open(newline="") as stream:
        return list(csv.DictReader(stream))


def collectives() -> list[str]:
    """Time at 1:1, and how many times as long it takes with fewer up-links."""
    lines = [
        "One group on plain leaf-spine of DGX H100 while all others of its axis do the same: time with 1:1 up-links,",
        "and how many times as long with fewer.",
        "",
        f"{'':34}{'ranks':>6}{'nodes':>6}{'1:1':>13}" + "".join(f"{f'1:{times}':>7}" for times in TIMES[1:]),
    ]
    for kind in ("all-reduce", "all-to-all"):
        for size in ("16-MiB", "1-GiB"):
            rows = read(f"{kind}-{size}.csv")
            found = {(row["cluster"], row["ranks"]): row for row in rows}
            ranks = list(dict.fromkeys(row["ranks"] for row in rows))
            for leaf, where in LEAVES.items():
                for group in ranks:
                    first = found[f"leaf{leaf}-1", group]
                    seconds = float(first["time_s"])
                    cells = "".join(
                        f"{float(found[f'leaf{leaf}-{times}', group]['time_s']) / seconds:7.2f}" for times in TIMES[1:]
                    )
                    what = f"{kind} {size.replace('-', ' ')}, {where}"
                    lines.append(f"{what:42}{group:>4}{first['nodes']:>6}{1e3 * seconds:10.3f} ms{cells}")
            lines.append("")
    return lines[:-1]


def iterations() -> list[str]:
    """Iteration at 1:1, what fewer up-links add, and what shows at 1:7."""
    rows = {(row["run"], row["fabric"], int(row["oversubscription"])): row for row in read("iterations.csv")}
    lines = [
        "Iteration with 1:1 up-links, what fewer add, and at 1:7 the exposed pp, dp, ep of the mean rank (in brackets",
        "with 1:1), ms.",
    ]
    for run in dict.fromkeys(run for run, *_ in rows):
        lines += ["", f"{run:52}{'1:1':>8}  " + "".join(f"{f'1:{times}':>8}" for times in TIMES[1:])]
        for fabric in dict.fromkeys(fabric for _, fabric, _ in rows):
            first, last = rows[run, fabric, 1], rows[run, fabric, TIMES[-1]]
            seconds = float(first["iteration_s"])
            cells = "".join(
                f"{float(rows[run, fabric, times]['iteration_s']) / seconds - 1:+8.1%}" for times in TIMES[1:]
            )
            shown = ", ".join(
                f"{axis} {1e3 * float(last[f'{axis}_s']):.0f} ({1e3 * float(first[f'{axis}_s']):.0f})"
                for axis in ("pp", "dp", "ep")
                if float(first[f"{axis}_s"])
            )
            lines.append(f"  {fabric:48}{seconds:8.3f} s{cells}   {shown}")
    return lines


Path("collectives.txt").write_text("\n".join(collectives()) + "\n")
Path("iterations.txt").write_text("\n".join(iterations()) + "\n")
