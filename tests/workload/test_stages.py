"""Which layers and ends each chunk holds."""

from __future__ import annotations

import pytest

from shardsim.errors import InputError
from shardsim.schema.model import load_model
from shardsim.workload.stages import ChunkContent, chunk_contents

GPT = load_model("narayanan-145.6b")


def test_the_ends_lie_on_the_first_and_last_virtual_stage() -> None:
    assert chunk_contents(GPT, ((0, 0), (1, 0), (0, 1), (1, 1))) == {
        (0, 0): ChunkContent(20, embedding=True, head=False),
        (1, 0): ChunkContent(20, embedding=False, head=False),
        (0, 1): ChunkContent(20, embedding=False, head=False),
        (1, 1): ChunkContent(20, embedding=False, head=True),
    }


def test_one_stage_holds_everything() -> None:
    assert chunk_contents(GPT, ((0, 0),)) == {(0, 0): ChunkContent(80, embedding=True, head=True)}


def test_layers_that_do_not_divide_are_refused_with_the_degrees_that_do() -> None:
    with pytest.raises(InputError, match=r"80 layers do not divide into 3 virtual stages \(one of 1, 2, 4, 5, 8"):
        chunk_contents(GPT, ((0, 0), (1, 0), (2, 0)))
