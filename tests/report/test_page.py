"""The HTML page: complete, escaped, and in need of nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from shardsim.report.page import prediction_page
from shardsim.values.results import Prediction, WaterfallStep

VOID = {"meta"}


class _Balance(HTMLParser):
    """Checks that every element is closed where it must be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_it_is_well_formed_and_names_the_figures(prediction: Prediction) -> None:
    page = prediction_page(prediction)
    checker = _Balance()
    checker.feed(page)
    assert checker.open == []
    assert page.startswith("<!DOCTYPE html>")
    for words in ("gpt-tiny on dgx-a100", "48.3%", "150.8", "72.50", "kernel efficiency", "assumed", "no error band"):
        assert words in page


def test_it_needs_nothing_from_elsewhere(prediction: Prediction) -> None:
    page = prediction_page(prediction)
    assert not re.search(r"https?://|<script|<link|<img|url\(|@import", page)


def test_everything_a_user_wrote_is_escaped(prediction: Prediction) -> None:
    odd = "\"><script>alert('x')</script>"
    hostile = replace(
        prediction,
        run=replace(prediction.run, model=replace(prediction.run.model, name=odd)),
        warnings=(odd,),
        waterfall=(WaterfallStep(odd, 1.0, 1e12), *prediction.waterfall),
    )
    page = prediction_page(hostile)
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_bars_stay_inside_their_frame_even_for_gains(prediction: Prediction) -> None:
    gains = replace(prediction, waterfall=(*prediction.waterfall, WaterfallStep("skipped half", -0.1, -15.6e12)))
    for left, width in re.findall(r'x="([-\d.]+)" width="([-\d.]+)"', prediction_page(gains)):
        assert float(left) >= 0
        assert float(width) >= 0
        assert float(left) + float(width) <= 300.01


def test_the_same_prediction_gives_the_same_page(prediction: Prediction) -> None:
    assert prediction_page(prediction) == prediction_page(replace(prediction))


def test_stages_that_hold_the_same_share_a_row(prediction: Prediction) -> None:
    first, other = {"weights": 2 * 2.0**30}, {"weights": 2.0**30}
    alike = replace(prediction, memory=replace(prediction.memory, stages=(first, other, other, other), moments=()))
    page = prediction_page(alike)
    rows = re.findall(r"<tr><td>([\d, -]+)</td><td class=\"number\">([\d.]+)</td>", page)
    assert rows == [("0", "2.00"), ("1-3", "1.00")]
