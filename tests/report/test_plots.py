"""Plots: files that are what they say, the same bytes each time, for awkward tables too."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from shardsim.errors import InputError
from shardsim.report.plots import plot_format, scaling_plot, validation_scatter
from shardsim.validate.summary import summarise
from shardsim.validate.table import ValidationRow, ValidationTable
from shardsim.values.scaling import MeasuredPoint, ScalingPoint, ScalingTable

COUNTS = (1, 2, 4, 8)


def scaling(
    efficiencies: tuple[float | None, ...] = (1.0, 0.96, 0.85, 0.78),
    counts: tuple[int, ...] = COUNTS,
    measured: tuple[MeasuredPoint, ...] = (),
) -> ScalingTable:
    points = tuple(
        ScalingPoint(n, "megatron", reason="no") if e is None else ScalingPoint(
            n, f"megatron-{n}", 1, 1, n, 1, 1, 8, 8, 0.5, 39e12 * e, 1e5, 0.31, e, 0.5 * e, fits=True
        )
        for n, e in zip(counts, efficiencies, strict=True)
    )  # fmt: skip
    return ScalingTable(
        "tp", "weak", "dgx-2h", 39e12, "model FLOP/s per GPU relative to 1 GPU (39 TFLOP/s)", points, measured
    )


def validation(*errors: float | None, source: str = "somewhere") -> ValidationTable:
    rows = [
        ValidationRow(
            str(i),
            f"{source} {i % 9}",
            "g",
            "f",
            "m",
            2.0**i,
            None if e is None else 2.0**i * (1 + e),
            e,
            "ok" if e is not None else "skipped",
            "",
        )
        for i, e in enumerate(errors)
    ]
    return summarise("runs.csv", rows)


PUBLISHED = tuple(
    MeasuredPoint(n, None, None, e, "paper") for n, e in zip(COUNTS, (1.0, 0.95, 0.82, 0.77), strict=True)
)
SCALINGS = {
    "plain": scaling(),
    "measured": scaling(measured=PUBLISHED),
    "one point": scaling((1.0,), (512,)),
    "a point missing": scaling((1.0, None, 0.8, 0.7)),
    "the first missing": scaling((None, 1.0, 0.8, 0.7)),
    "large": scaling((1.0, 0.9), (128, 16384)),
    "better than ideal": scaling((1.0, 1.3, 1.6, 1.2)),
    "measured without efficiency": scaling(measured=(MeasuredPoint(1, 0.5, None, None, ""),)),
}
VALIDATIONS = {
    "one": validation(0.05),
    "many sources": validation(*[0.01 * i - 0.1 for i in range(30)]),
    "some skipped": validation(None, 0.1, None, -0.5),
    "all equal": validation(0.0, 0.0),
    "long names": validation(0.1, -0.1, source="A very long name of a source that would not fit into a legend at all"),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_scaling_plots_are_valid_whatever_the_table(name: str) -> None:
    _check_png(scaling_plot(SCALINGS[name], "png"))
    _check_svg(scaling_plot(SCALINGS[name], "svg"))


@pytest.mark.parametrize("name", VALIDATIONS)
def test_scatter_plots_are_valid_whatever_the_table(name: str) -> None:
    _check_png(validation_scatter(VALIDATIONS[name], "png"))
    _check_svg(validation_scatter(VALIDATIONS[name], "svg"))


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_same_table_gives_the_same_bytes(kind: str) -> None:
    assert scaling_plot(SCALINGS["measured"], kind) == scaling_plot(scaling(measured=PUBLISHED), kind)
    again = validation(*[0.01 * i - 0.1 for i in range(30)])
    assert validation_scatter(VALIDATIONS["many sources"], kind) == validation_scatter(again, kind)


def test_drawing_leaves_the_callers_settings_alone() -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    scaling_plot(SCALINGS["plain"], "svg")
    assert dict(mpl.rcParams) == before


def test_plots_do_not_depend_on_the_callers_settings() -> None:
    import matplotlib as mpl

    expected = scaling_plot(SCALINGS["plain"], "png")
    with mpl.rc_context({"font.size": 30, "lines.linewidth": 9}):
        assert scaling_plot(SCALINGS["plain"], "png") == expected


def test_measured_points_change_the_plot() -> None:
    assert scaling_plot(SCALINGS["measured"], "svg") != scaling_plot(SCALINGS["plain"], "svg")


@pytest.mark.parametrize(("name", "kind"), [("a.png", "png"), ("b.SVG", "svg")])
def test_the_format_follows_from_the_name(name: str, kind: str) -> None:
    assert plot_format(Path(name)) == kind


@pytest.mark.parametrize("name", ["a.pdf", "png", "a"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"\.png or \.svg"):
        plot_format(Path(name))


def _check_png(data: bytes) -> None:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert 600 < width < 3000
    assert 400 < height < 3000
    assert b"Software" not in data


def _check_svg(data: bytes) -> None:
    import xml.etree.ElementTree as ET

    root = ET.fromstring(data)  # noqa: S314  # we wrote it
    assert root.tag.endswith("svg")
    assert b"dc:date" not in data
