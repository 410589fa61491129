"""Fit all shipped attention profiles: ``python -m shardsim.calibrate.attentions --published FILE.csv [--tables DIR]``.

Reads figures of attention kernels (``topologies/profiles/attention-figures.csv`` and those given), and prefills of the
measured database (optional extra ``shardsim[measured]``); fits every library that the recipes below name, prints how
well, and with ``--out`` writes ``topologies/profiles/attention/NAME.yaml``. The same input gives the same files.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shardsim.calibrate.attention import (
    AttentionFit,
    AttentionPoints,
    fit_attention,
    joined,
    library_constants,
    read_published,
    read_table,
)
from shardsim.calibrate.measured import measured_folder
from shardsim.schema.hardware import load_device
from shardsim.schema.locate import data_roots
from shardsim.values.kernels import AttentionPass
from shardsim.values.provenance import Basis

FIGURES = "topologies/profiles/attention-figures.csv"
WIDTHS = (64, 128, 256)
"""Head dimensions of the database that training uses (-)."""

REFERENCE = 128
"""The head dimension that everything was measured at (-)."""

TABLE_POINTS = 600
"""Prefills of a table that enter a fit (-), evenly spread over its rows, so that figures are not drowned."""

LAUNCH = 4e-6
"""Fixed time of a kernel where the figures do not tell it (-): all their batches hold as many tokens, so that it
cannot be told from memory traffic. FlashAttention-3 prefills on H100 give 3.4 to 4.7 us."""

STRUCTURE = ("tail", "memory_efficiency", "overhead")
"""Constants of how a kernel fills a device, which one device lends to its successor."""

PAPERS = "Dao-AILab/flash-attention, benchmark figures in assets at commit 0251105, read from their bar labels"
CUDNN = "NVIDIA/cudnn-frontend, benchmark results of its attention training suite"
DATABASE = "aiconfigurator-core 0.12, context attention of"


@dataclass(frozen=True, slots=True)
class Part:
    """What one library of a profile is fitted from.

    Parameters
    ----------
    library : str
    own : tuple of (str, str)
        GPU and library of the figures that set the level.
    kin : tuple of (str, str)
        The same, of points that have a level of their own.
    table, kin_table : (str, str) or None
        System and kernel of prefills that set the level, or have one of their own.
    widths_from : (str, str) or None
        Prefills by which head dimensions without a figure are derived, by their ratio to 128.
    like : (str, str) or None
        Profile and library that lend ``lent`` constants; all of them where nothing is measured.
    lent : tuple of str
    basis : (str, str)
        Of the constants of the forward and of the backward pass.
    source : str
    """

    library: str
    own: tuple[tuple[str, str], ...] = ()
    kin: tuple[tuple[str, str], ...] = ()
    table: tuple[str, str] | None = None
    kin_table: tuple[str, str] | None = None
    widths_from: tuple[str, str] | None = None
    like: tuple[str, str] | None = None
    lent: tuple[str, ...] = ()
    basis: tuple[Basis, Basis] = ("fitted", "fitted")
    source: str = PAPERS


@dataclass(frozen=True, slots=True)
class Recipe:
    """One profile.

    Parameters
    ----------
    title : str
    device : str
        Catalog device whose peaks the shares refer to.
    measured_on : tuple of str
    best : str
        Fastest library that was measured there, both ways.
    parts : tuple of Part
    """

    title: str
    device: str
    measured_on: tuple[str, ...]
    best: str
    parts: tuple[Part, ...]


_A100, _H100, _H200 = "A100-SXM4-80G", "H100-SXM5-80G", "H200-SXM"


def _blackwell(name: str, figures: str, system: str, widths: str = "128") -> Part:
    return Part(
        "cudnn",
        own=((figures, "cuDNN"),),
        widths_from=(system, "torch_flow"),
        like=("h100-sxm", "cudnn"),
        lent=STRUCTURE,
        source=(
            f"{CUDNN} on {name}, head dimension {widths}; 64 and 256 by their ratio to 128 in TensorRT-LLM "
            f"kernels ({DATABASE} {system}); tail and memory traffic as on H100"
        ),
    )


RECIPES: Mapping[str, Recipe] = {
    "a100-sxm": Recipe(
        "A100 SXM, fused attention",
        "a100-sxm-80gb",
        ("a100-sxm-80gb", "a100-sxm-40gb"),
        "flash2",
        (
            Part(
                "flash2",
                own=((_A100, "FlashAttention-2"),),
                kin=(("A100-PCIe-80G", "FlashAttention-2"),),
                kin_table=("a100_sxm", "flash_attention"),
                source=(
                    f"{PAPERS} (forward and backward together); how the sum divides from {CUDNN} on A100 PCIe; grouped "
                    f"heads and batches from {DATABASE} a100_sxm"
                ),
            ),
            Part(
                "flash1",
                own=((_A100, "FlashAttention-1"),),
                like=("a100-sxm", "flash2"),
                lent=(*STRUCTURE, "backward_ratio"),
                source=f"{PAPERS} (forward and backward together, divided as in FlashAttention-2; causal)",
            ),
        ),
    ),
    "h100-sxm": Recipe(
        "H100 SXM, fused attention",
        "h100-sxm-80gb",
        ("h100-sxm-80gb",),
        "cudnn",
        (
            Part(
                "cudnn",
                own=((_H100, "cuDNN"),),
                kin=((_H200, "cuDNN"),),
                source=f"{PAPERS} (forward); backward by its ratio to forward from {CUDNN} on H200, the same chip",
            ),
            Part("flash2", own=((_H100, "FlashAttention-2"),)),
            Part(
                "flash3",
                own=((_H100, "FlashAttention-3"),),
                kin=((_H200, "FlashAttention-4"),),
                basis=("fitted", "assumed"),
                source=(
                    f"{PAPERS} (forward); backward not measured: its ratio to forward from FlashAttention-4 on H200, "
                    f"whose kernels there descend from these ({CUDNN})"
                ),
            ),
        ),
    ),
    "h200-sxm": Recipe(
        "H200 SXM, fused attention",
        "h200-sxm",
        ("h200-sxm",),
        "cudnn",
        (
            Part(
                "cudnn",
                own=((_H200, "cuDNN"),),
                kin=((_H100, "cuDNN"),),
                source=f"{CUDNN} on H200; head dimensions 64 and 256 by their ratio to 128 from {PAPERS}, on H100",
            ),
            *(
                Part(name, like=("h100-sxm", name), basis=("assumed", "assumed"), source=f"as on H100: {PAPERS}")
                for name in ("flash2", "flash3")
            ),
        ),
    ),
    "b200-sxm": Recipe(
        "B200 SXM, fused attention",
        "b200-sxm",
        ("b200-sxm",),
        "cudnn",
        (_blackwell("B200 (of 2025)", "B200", "b200_sxm"),),
    ),
    "gb200": Recipe(
        "GB200, fused attention",
        "gb200",
        ("gb200",),
        "cudnn",
        (_blackwell("GB200", "GB200", "gb200", "128, and 192 with values of 128"),),
    ),
    "gb300": Recipe("GB300, fused attention", "gb300", ("gb300",), "cudnn", (_blackwell("GB300", "GB300", "gb300"),)),
    "b300-sxm": Recipe(
        "B300 SXM, fused attention",
        "b300-sxm",
        (),
        "cudnn",
        (
            Part(
                "cudnn",
                like=("gb300", "cudnn"),
                basis=("assumed", "assumed"),
                source=f"as on GB300, the same chip: {CUDNN}",
            ),
        ),
    ),
    "l40s": Recipe(
        "L40S, fused attention",
        "l40s",
        ("l40s",),
        "flash2",
        (
            Part(
                "flash2",
                table=("l40s", "vllm_flash_attn_fa2"),
                like=("a100-sxm", "flash2"),
                lent=("backward_ratio", "backward_tile"),
                basis=("fitted", "assumed"),
                source=f"{DATABASE} l40s, FlashAttention-2 of vLLM 0.24 (forward); backward by its ratio on A100",
            ),
        ),
    ),
    "v100-sxm": Recipe(
        "V100 SXM, fused attention",
        "v100-sxm2-32gb",
        (),
        "flash1",
        (
            Part(
                "flash1",
                like=("a100-sxm", "flash1"),
                basis=("assumed", "assumed"),
                source=f"no fused kernel of its time ran on V100: shares of FlashAttention-1 on A100 ({PAPERS})",
            ),
        ),
    ),
}


def fit_recipe(
    part: Part,
    device: str,
    figures: Mapping[tuple[str, str], AttentionPoints],
    tables: Path,
    known: Mapping[tuple[str, str], AttentionFit],
) -> AttentionFit:
    """Fit one library of one profile.

    Parameters
    ----------
    part : Part
    device : str
        Catalog name.
    figures : mapping of (str, str) to AttentionPoints
    tables : Path
        Folder of the measured database.
    known : mapping of (str, str) to AttentionFit
        By profile and library, those that are lent from.

    Returns
    -------
    AttentionFit
    """
    lent = known[part.like].fit.constants if part.like is not None else {}
    if part.like is not None and not part.lent:
        return known[part.like]
    fixed = {name: lent[name] for name in part.lent}
    if part.table is None and "overhead" not in fixed:
        fixed["overhead"] = LAUNCH
    found = fit_attention(gathered(part, figures, tables), load_device(device), part.library, fixed)
    if part.widths_from is None:
        return found
    points = prefills(tables, *part.widths_from)
    table = fit_attention(points, load_device(device), part.library).fit.constants
    constants = dict(found.fit.constants)
    for width in WIDTHS:
        ratio = table[f"efficiency {width}"] / table[f"efficiency {REFERENCE}"]
        constants.setdefault(f"efficiency {width}", constants[f"efficiency {REFERENCE}"] * ratio)
    return replace(found, library=library_constants(constants), fit=replace(found.fit, constants=constants))


def gathered(part: Part, figures: Mapping[tuple[str, str], AttentionPoints], tables: Path) -> AttentionPoints:
    """All points of a part, with their levels."""
    parts = [figures[key] for key in part.own]
    parts += [figures[key].at_level(" ".join(key)) for key in part.kin]
    if part.table is not None:
        parts.append(prefills(tables, *part.table))
    if part.kin_table is not None:
        parts.append(prefills(tables, *part.kin_table).at_level("prefills"))
    return joined(parts)


def prefills(tables: Path, system: str, kernel: str) -> AttentionPoints:
    """Some of a table's rows without a window, evenly spread."""
    points = read_table(tables, system, kernel)
    points = points.where((points.window == 0) & np.isin(points.head_dim, WIDTHS))
    return points.where(np.arange(0, len(points), max(1, len(points) // TABLE_POINTS)))


def fit_recipes(
    figures: Mapping[tuple[str, str], AttentionPoints], tables: Path
) -> Iterator[tuple[str, Recipe, Mapping[str, AttentionFit]]]:
    """Fit the recipes in their order.

    Yields
    ------
    str
        Name of the profile.
    Recipe
    mapping of str to AttentionFit
        By library.
    """
    known: dict[tuple[str, str], AttentionFit] = {}
    for name, recipe in RECIPES.items():
        for part in recipe.parts:
            known[name, part.library] = fit_recipe(part, recipe.device, figures, tables, known)
        yield name, recipe, {part.library: known[name, part.library] for part in recipe.parts}


def attention_yaml(recipe: Recipe, fits: Mapping[str, AttentionFit]) -> str:
    """Write a profile as the YAML that the loader reads."""
    lines = [
        "# Written by python -m shardsim.calibrate.attentions from the recipe of this name: change the recipe.",
        f"title: {recipe.title}",
        "sources:",
        *(f"  {part.library}: {json.dumps(part.source)}" for part in recipe.parts),
        f"measured_on: [{', '.join(recipe.measured_on)}]",
        f"best: {recipe.best}",
        "libraries:",
    ]
    for part in recipe.parts:
        found = fits[part.library]
        measured = part.like is None or bool(part.lent)
        lines.append(f"  {part.library}:")
        for name, basis in zip(("forward", "backward"), part.basis, strict=True):
            own: AttentionPass = getattr(found.library, name)
            note = f"basis: {basis}, source: {part.library}"
            fitted = f"{note}, error: {found.fit.median_error:.3f}, points: {found.fit.points}" if measured else note
            derived = f"basis: assumed, source: {part.library}"
            lines += [f"    {name}:", "      efficiency:"]
            for width, share in own.efficiency.items():
                origin = derived if part.widths_from is not None and width != REFERENCE else fitted
                lines.append(f'        "{width}": {{value: {share:.4g}, {origin}}}')
            taken = {*part.lent, *(("overhead",) if part.table is None else ())}
            for key, value in (
                ("tile", f"{own.tile * 1e6:.4g} us"),
                ("tail", f"{own.tail:.4g}"),
                ("memory_efficiency", f"{own.memory_efficiency:.4g}"),
                ("overhead", f"{own.overhead * 1e6:.4g} us"),
            ):
                lines.append(f"      {key}: {{value: {value}, {derived if key in taken else note}}}")
    return "\n".join(lines) + "\n"


def quality(points: AttentionPoints, predicted: np.ndarray) -> Iterator[str]:
    """Errors of a fit by level and pass, a line each."""
    error = np.abs(predicted / points.seconds - 1.0)
    for level, which in sorted(set(zip(points.level.tolist(), points.passes.tolist(), strict=True))):
        some = (points.level == level) & (points.passes == which)
        yield (
            f"  {level or 'own':34} {which:8} {int(some.sum()):4} points: median {np.median(error[some]):6.1%}, "
            f"p90 {np.quantile(error[some], 0.9):6.1%}"
        )


def figure_files(given: Sequence[Path]) -> list[Path]:
    """The shipped figures and those given."""
    return [root / FIGURES for root in data_roots(()) if (root / FIGURES).is_file()] + list(given)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, write and report."""
    parser = argparse.ArgumentParser(prog="python -m shardsim.calibrate.attentions", description=__doc__.split("\n")[0])
    parser.add_argument("--published", type=Path, action="append", default=[], help="CSV of published figures")
    parser.add_argument("--tables", type=Path, help="folder of the measured tables; by default the installed package")
    parser.add_argument("--out", type=Path, help="folder to write profiles to; nothing is written without it")
    given = parser.parse_args(arguments)
    tables = measured_folder() if given.tables is None else given.tables
    figures = read_published(figure_files(given.published))
    for name, recipe, fits in fit_recipes(figures, tables):
        for part in recipe.parts:
            fit = fits[part.library].fit
            sys.stdout.write(f"{name} {part.library}\n")
            if part.like is None or part.lent:
                for line in quality(gathered(part, figures, tables), fit.predicted):
                    sys.stdout.write(f"{line}\n")
            constants = ", ".join(f"{key} {value:.4g}" for key, value in fit.constants.items())
            pinned = f"; at their bounds: {', '.join(fit.at_bounds)}" if fit.at_bounds else ""
            sys.stdout.write(f"  {constants}{pinned}\n")
        if given.out is not None:
            (given.out / f"{name}.yaml").write_text(attention_yaml(recipe, fits), encoding="utf-8")


if __name__ == "__main__":
    main()
