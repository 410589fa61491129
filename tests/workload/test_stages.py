"""Which layers and ends each chunk holds."""

from __future__ import annotations

import pytest

from shardsim.errors import InputError
from shardsim.schema.model import load_model
from shardsim.values.training import Layout
from shardsim.workload.schedules import make_schedule
from shardsim.workload.stages import ChunkContent, chunk_contents

GPT = load_model("narayanan-145.6b")
ANY = Layout(1, 1, 1)


def test_the_ends_lie_on_the_first_and_last_virtual_stage() -> None:
    assert chunk_contents(GPT, ANY, make_schedule("interleaved", 2, 2, 2)) == {
        (0, 0): ChunkContent(20, embedding=True, head=False),
        (1, 0): ChunkContent(20, embedding=False, head=False, first=20),
        (0, 1): ChunkContent(20, embedding=False, head=False, first=40),
        (1, 1): ChunkContent(20, embedding=False, head=True, first=60),
    }


def test_one_stage_holds_everything() -> None:
    assert chunk_contents(GPT, ANY, make_schedule("1f1b", 1, 1)) == {
        (0, 0): ChunkContent(80, embedding=True, head=True)
    }


def test_layers_that_do_not_divide_are_refused_with_the_degrees_that_do() -> None:
    with pytest.raises(InputError, match=r"80 layers do not divide into 3 virtual stages \(one of 1, 2, 4, 5, 8"):
        chunk_contents(GPT, ANY, make_schedule("1f1b", 3, 3))


def test_a_split_says_how_many_layers_each_virtual_stage_holds() -> None:
    found = chunk_contents(GPT, Layout(1, 3, 1, split=(20, 31, 29)), make_schedule("1f1b", 3, 3))
    assert [(content.first, content.layers) for content in found.values()] == [(0, 20), (20, 31), (51, 29)]
    with pytest.raises(InputError, match=r"a split of 79 layers over 3 virtual stages \(80 layers over 3"):
        chunk_contents(GPT, Layout(1, 3, 1, split=(20, 30, 29)), make_schedule("1f1b", 3, 3))
