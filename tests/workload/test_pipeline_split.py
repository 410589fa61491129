"""Layers of stages as users say them: counts, Megatron's layout string, ends counted as layers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.errors import InputError
from shardsim.workload.pipeline_split import SplitRequest, layout_sections, prediction_stage, stage_split


def split(layers: int, pp: int, **asked: Any) -> tuple[int, tuple[int, ...]]:
    vpp, found, problems = stage_split(SplitRequest(layers, pp, **asked))
    assert problems == ()
    return vpp, found


def wrong(layers: int, pp: int, **asked: Any) -> list[str]:
    return [str(problem) for problem in stage_split(SplitRequest(layers, pp, **asked))[2]]


def test_without_a_word_stages_are_even() -> None:
    assert split(30, 4) == (1, ())
    assert split(96, 8, vpp=3) == (3, ())


def test_first_and_last_counts_leave_the_rest_to_the_middle() -> None:
    assert split(30, 4, first_layers=7, last_layers=7) == (1, (7, 8, 8, 7))
    assert split(126, 16, first_layers=7, last_layers=7) == (1, (7, *[8] * 14, 7))  # Llama 3 405B, arXiv 2407.21783
    assert split(60, 8, first_layers=4, last_layers=8) == (1, (4, *[8] * 7))
    assert split(22, 4, last_layers=4) == (1, (6, 6, 6, 4))


def test_counts_of_a_stage_are_over_all_its_chunks() -> None:
    assert split(60, 8, vpp=4, first_layers=4, last_layers=8) == (4, (1, *[2] * 7) * 4)


@pytest.mark.parametrize(
    ("layers", "pp", "asked", "said"),
    [
        (48, 2, {"first_layers": 11, "last_layers": 13}, "first_layers: both stages hold 24 of the model's 48 layers"),
        (20, 1, {"last_layers": 1}, "last_layers: the only stage holds 1 of the model's 20 layers (counts that add up"),
        (32, 4, {"first_layers": 32}, "no layers remain for the other 3 stages (one of 14, 17, 20, 23, 26, 29)"),
        (32, 4, {"first_layers": 20, "last_layers": 20}, "no layers remain for the 2 stages between them"),
        (20, 1, {"first_layers": 10, "last_layers": 10}, "layers of the first and of the last stage, of 1"),
        (30, 4, {"first_layers": 6, "last_layers": 7}, "17 layers remain and do not divide over the 2 stages between"),
        (60, 4, {"vpp": 3, "first_layers": 4}, "4 layers do not divide into 3 chunks (3 or 6)"),
    ],
)
def test_counts_that_do_not_add_up_are_refused(layers: int, pp: int, asked: dict[str, int], said: str) -> None:
    assert any(said in message for message in wrong(layers, pp, **asked))


def test_the_counts_that_would_be_legal_are_named() -> None:
    (message,) = wrong(30, 4, first_layers=6, last_layers=7)
    assert message.endswith("(one of 1, 3, 5, 7, 9, 11)")
    for count in (1, 3, 5, 7, 9, 11):
        assert split(30, 4, first_layers=count, last_layers=7)[0] == 1


def test_ends_counted_as_layers_take_one_from_their_stage() -> None:
    """The runs of arXiv 2401.10241: the first and the last stage hold one layer fewer."""
    for layers, pp in ((22, 8), (30, 8), (46, 16), (62, 32)):
        vpp, found = split(layers, pp, embedding_as_layer=True, loss_as_layer=True)
        each = (layers + 2) // pp
        assert (vpp, found) == (1, (each - 1, *[each] * (pp - 2), each - 1))
    assert split(30, 8, vpp=2, embedding_as_layer=True, loss_as_layer=True)[1] == (1, *[2] * 14, 1)
    assert split(31, 8, loss_as_layer=True)[1] == (*[4] * 7, 3)
    assert "30 layers and the embedding make 31, not divisible by 4 stages" in wrong(30, 4, embedding_as_layer=True)[0]


def test_degrees_that_are_named_leave_a_layer_for_every_virtual_stage() -> None:
    """107 is a prime: one stage a layer would be more stages than the 105 layers of the model."""
    ends = {"embedding_as_layer": True, "loss_as_layer": True}
    assert wrong(105, 4, **ends)[0].endswith("make 107, not divisible by 4 stages (1)")
    said = "make 107, not divisible by pp 4 x 2 chunks = 8 virtual stages (no pp fits: give stage_layers instead)"
    assert wrong(105, 4, vpp=2, **ends)[0].endswith(said)
    assert wrong(105, 4, schedule_chunks=2, folded=True, **ends)[0].endswith(said)
    assert wrong(94, 5, vpp=2, **ends)[0].endswith("(one of 2, 3, 4, 6, 8, 12, 16, 24)")  # interleaving takes two


def test_a_layout_string_is_written_out_as_megatron_does() -> None:
    assert layout_sections("Ettt|(tt|)*29,L") == ("Ettt", *["tt"] * 29, "L")
    assert layout_sections("E|t*3|(t|)*2tL") == ("E", "ttt", "t", "t", "tL")


def test_a_layout_string_gives_layers_and_chunks() -> None:
    assert split(61, 31, pp_layout="Et*3|(tt|)*29,L") == (1, (3, *[2] * 29, 0))
    assert split(16, 4, pp_layout="Ett|(tt|)*6ttL") == (2, (2,) * 8)


def test_a_layout_string_that_contradicts_is_refused() -> None:
    assert "the stages hold 14 layers, the model has 16" in wrong(16, 4, pp_layout="Ett|(tt|)*6L")[0]
    assert "7 virtual stages do not divide over pp 4" in wrong(14, 4, pp_layout="Ett|(tt|)*5ttL")[0]
    assert "the loss (L) stands 0 times" in wrong(16, 4, pp_layout="Ett|(tt|)*6tt")[0]
    assert "the embedding (E) stands 2 times" in wrong(16, 4, pp_layout="EtEt|(tt|)*6ttL")[0]
    assert "holds ( ) * x, which says nothing" in wrong(4, 2, pp_layout="E(tt|tx)*|L")[0]
    assert "contradict each other: vpp means 3, pp_layout means 2" in wrong(16, 4, vpp=3, pp_layout="Ett|(tt|)*6ttL")[0]


def test_a_layout_string_says_where_multi_token_prediction_lies() -> None:
    """DeepSeek-V3 on 16 ranks of two chunks, the module on a chunk of its own in front of the loss."""
    text = "Et*3|(tt|)*29,m|L"
    assert split(61, 16, pp_layout=text, mtp=1) == (2, (3, *[2] * 29, 0, 0))
    assert prediction_stage(text) == 30
    assert prediction_stage("Et|tmL") == 1
    assert prediction_stage("Et|tL") is prediction_stage(None) is prediction_stage("Et|x") is None


@pytest.mark.parametrize(
    ("text", "mtp", "expected"),
    [
        ("Ett|(tt|)*6mL", 0, "m stands 1 times, the model predicts 0 further tokens (leave it out, or set mtp"),
        ("Ett|(tt|)*6mL", 2, "m stands 1 times, the model predicts 2 further tokens (2 times, or leave it out"),
        ("Ett|(tt|)*5mtt|L", 1, "m stands before a t, or in several stages"),
        ("Ett|(tt|)*5ttm|mL", 2, "m stands before a t, or in several stages"),
        ("E(tt|)*7|||m||||L", 1, "m stands in virtual stage 10, counted from 0 (in the last chunk of a rank"),
    ],
)
def test_multi_token_prediction_in_an_impossible_place_is_refused(text: str, mtp: int, expected: str) -> None:
    assert expected in wrong(14, 4, pp_layout=text, mtp=mtp)[0]


def test_a_layout_string_without_end_is_refused() -> None:
    with pytest.raises(InputError, match="more than 100,000 letters"):
        layout_sections("E(t|)*99999999L")
    with pytest.raises(InputError, match="more than 100,000 letters"):
        layout_sections("Et*999999999999999999999999|L")


def test_a_list_of_layers_may_leave_stages_empty() -> None:
    assert split(10, 2, stage_layers=(0, 4, 4, 2)) == (2, (0, 4, 4, 2))
    assert "the stages hold 9 layers, the model has 10" in wrong(10, 2, stage_layers=(5, 4))[0]


def test_layers_of_a_chunk_give_the_number_of_chunks() -> None:
    assert split(40, 8, virtual_stage_layers=5) == (1, ())
    assert split(40, 8, virtual_stage_layers=1) == (5, ())
    (message,) = wrong(40, 8, virtual_stage_layers=2)  # github NVIDIA/Megatron-LM, pull request 326
    assert message == "layout.virtual_stage_layers: 5 layers of a stage do not divide into chunks of 2 (one of 1, 5)"
    assert split(30, 8, virtual_stage_layers=2, embedding_as_layer=True, loss_as_layer=True)[0] == 2


def test_what_is_said_in_two_ways_is_refused() -> None:
    assert (
        "in 2 ways: stage_layers; first_layers and last_layers" in wrong(8, 2, stage_layers=(4, 4), first_layers=4)[0]
    )
    said = "virtual_stage_layers says that all chunks are alike, first_layers and last_layers that they are not"
    assert said in wrong(8, 2, virtual_stage_layers=2, first_layers=4)[0]


def test_a_schedule_that_folds_the_model_has_its_own_chunks() -> None:
    v_shape: dict[str, Any] = {"schedule_chunks": 2, "folded": True}
    assert split(30, 8, embedding_as_layer=True, loss_as_layer=True, **v_shape) == (2, (1, *[2] * 14, 1))
    assert "the first stage of this schedule holds the first and the last" in wrong(30, 8, first_layers=2, **v_shape)[0]
    assert wrong(96, 8, vpp=3, schedule="zb-v", **v_shape) == [
        "layout.vpp: zb-v holds 2 chunks a stage, not 3 (2, or leave it out)"
    ]
    (found,) = wrong(96, 8, virtual_stage_layers=4, schedule="zb-v", **v_shape)
    assert found.endswith("a stage: 16 virtual stages on pp 8, and 4 layers in each do not make 96 (6)")
    assert split(96, 8, virtual_stage_layers=6, **v_shape) == (2, ())


def test_two_copies_of_the_model_split_alike() -> None:
    two_ways: dict[str, Any] = {"schedule_chunks": 2, "copies": 2}
    assert split(30, 4, first_layers=7, last_layers=7, **two_ways) == (2, (7, 8, 8, 7))
    assert split(30, 4, stage_layers=(7, 8, 8, 7), **two_ways) == (2, (7, 8, 8, 7))
    held = "dualpipe holds 2 chunks a stage for 2 copies of the model"
    said = f"{held}: 4 virtual stages of each on pp 4, not 8 (4 of them)"
    listed = wrong(32, 4, stage_layers=(4,) * 8, schedule="dualpipe", **two_ways)
    assert listed == [f"layout.stage_layers: {said}"]
    written = wrong(32, 4, pp_layout="Et*4|(t*4|)*6t*4L", schedule="dualpipe", **two_ways)
    assert written == [f"layout.pp_layout: {said}"]


@given(
    st.integers(1, 60), st.integers(1, 12), st.integers(1, 4), st.one_of(st.none(), st.integers(1, 12)),
    st.one_of(st.none(), st.integers(1, 12)), st.booleans(), st.booleans(),
)  # fmt: skip
def test_every_split_adds_up_over_its_virtual_stages(
    layers: int, pp: int, vpp: int, first: int | None, last: int | None, embedding: bool, loss: bool
) -> None:
    asked = SplitRequest(
        layers, pp, vpp, first_layers=first, last_layers=last, embedding_as_layer=embedding, loss_as_layer=loss
    )
    chunks, found, problems = stage_split(asked)
    if problems:
        assert found == ()
    elif found:
        assert (chunks, len(found), sum(found), min(found) >= 0) == (vpp, pp * vpp, layers, True)
        assert first is None or sum(found[::pp]) == first
        assert last is None or sum(found[pp - 1 :: pp]) == last
