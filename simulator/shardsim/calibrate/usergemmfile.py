"""Write GEMM constants that were fitted to a user's table as the YAML that the loader reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from shardsim.calibrate.gemm import TILE_NAMES
from shardsim.calibrate.gemmfile import product_constant, product_note
from shardsim.calibrate.notes import time_text
from shardsim.calibrate.usergemm import OWN, OWN_SPEED, SCALED, UserGemmFit, shipped_provenance
from shardsim.values.hardware import Device
from shardsim.values.kernels import GemmConstants, GemmResidual, KernelConstants
from shardsim.values.provenance import Provenance

_TIMES = ("fill", "split_overhead")


def user_gemm_yaml(fits: Sequence[UserGemmFit], device: Device, kernels: KernelConstants, base: str, table: str) -> str:
    """Write a GEMM profile.

    Parameters
    ----------
    fits : sequence of UserGemmFit
        By data type; the others are as in ``base``.
    device : Device
        What was measured.
    kernels : KernelConstants
        The profile that the device has.
    base : str
        Its GEMM profile, as the file should name it: a catalog name, or a path from the file's own folder.
    table : str
        Name of the user's table.

    Returns
    -------
    str
    """
    rows = sum(len(fit.samples) for fit in fits)
    sources = _Sources(
        {
            OWN: f"{table}: {rows:,} products measured on {device.name}",
            OWN_SPEED: f"{table}, products measured on {device.name}: the speed alone was fitted, one factor for all",
            SCALED: "the shipped share of peak, at the speed of the measured products: none was as long as in training",
        }
    )
    body: list[str] = []
    for fit in fits:
        body += [f"{fit.dtype}:", *_products(fit.constants, fit.provenance, sources)]
    if device.name not in kernels.measured_on.get("gemm", ()):
        # What the base measured elsewhere stays an assumption here.
        fitted = {fit.dtype for fit in fits}
        for dtype, constants in kernels.gemm.items():
            if dtype not in fitted:
                body += [f"{dtype}:", *_products(constants, shipped_provenance(kernels, dtype, device), sources)]
        body.insert(0, f"measured_on: [{device.name}]")
    head = [
        "# Written by shardsim calibrate gemm: data types that were measured are fitted, all else is as in the profile",
        "# that this one is based on.",
        f"based_on: {base}",
        f"title: {json.dumps(f'{device.name}, fitted to {rows:,} products of {table}', ensure_ascii=False)}",
        "sources:",
        *(f"  {name}: {json.dumps(citation, ensure_ascii=False)}" for name, citation in sources.used()),
    ]
    return "\n".join([*head, *body]) + "\n"


class _Sources:
    """Citations by name; those that constants of the base carry in full get a name when they are first used."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self._known = dict(known)
        self._fixed = len(known)
        self._used: dict[str, str] = {}

    def named(self, note: Provenance) -> Provenance:
        """Name the source of a constant as it is listed."""
        source = name = note.source
        if source not in self._known:
            name = next(
                (n for n, citation in self._known.items() if citation == source),
                f"base_{len(self._known) - self._fixed + 1}",
            )
            self._known.setdefault(name, source)
        self._used[name] = self._known[name]
        return replace(note, source=name)

    def used(self) -> Iterator[tuple[str, str]]:
        """Names and citations that something rests on."""
        yield from self._used.items()


def _products(constants: GemmConstants, notes: Mapping[str, Provenance], sources: _Sources) -> Iterator[str]:
    """The lines of one data type."""

    def line(indent: int, name: str, key: str, value: str) -> str:
        return f"{' ' * indent}{name}: {product_constant(value, sources.named(notes[key]))}"

    yield line(2, "sustained", "sustained", f"{constants.sustained:.4g}")
    yield line(2, "memory_efficiency", "memory_efficiency", f"{constants.memory_efficiency:.4g}")
    yield line(2, "overhead", "overhead", time_text(constants.overhead))
    if constants.tile is not None:
        yield "  tile:"
        yield "    efficiency:"
        for name, share in zip(TILE_NAMES, constants.tile.efficiency, strict=False):
            yield line(6, name, f"tile.efficiency.{name}", f"{share:.4g}")
        for name in ("fill", "split_overhead", "wave_quantization", "burst_cap", "burst_decay", "sharpness"):
            value = getattr(constants.tile, name)
            yield line(4, name, f"tile.{name}", time_text(value) if name in _TIMES else f"{value:.4g}")
    if constants.residual is not None:
        yield "  residual:"
        yield from (f"    {part}" for part in product_note(sources.named(notes["residual"])).split(", "))
        yield "    value:"
        yield from (f"      {text}" for text in _grid(constants.residual))
    if constants.layout_time:
        yield "  layout_time:"
        for layout, ratio in constants.layout_time.items():
            yield line(4, layout, f"layout_time.{layout}", f"{ratio:.4g}")
    if constants.grouped is not None:
        yield "  grouped:"
        yield line(4, "slowdown", "grouped.slowdown", f"{constants.grouped.slowdown:.4g}")
        yield line(4, "overhead", "grouped.overhead", time_text(constants.grouped.overhead))


def _grid(residual: GemmResidual) -> Iterator[str]:
    for side in ("m", "n", "k"):
        knots = ", ".join(f"{2.0**x:.0f}" for x in getattr(residual, f"log2_{side}"))
        yield f"{side}: [{knots}]"
    yield "log_ratio:"
    for plane in residual.log_ratio:
        rows = ", ".join(f"[{', '.join(f'{value:.3f}' for value in row)}]" for row in plane)
        yield f"  - [{rows}]"
