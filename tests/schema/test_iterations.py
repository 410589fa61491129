import pytest

from shardsim.errors import InputError
from shardsim.schema.iterations import checkpoint_of, loading_of
from shardsim.schema.run import request_from_mapping
from shardsim.values.iterations import Checkpoint, Loading

RUN = {"model": "llama-2-7b", "cluster": "dgx-a100", "gpus": 8, "batch": {"global": 8, "seq": 2048}}


def test_loading_and_checkpoints_carry_their_units():
    asked = request_from_mapping(
        RUN
        | {
            "loading": {"bandwidth": "2 GB/s", "workers": 2},
            "checkpoint": {"every": 100, "bandwidth": "273 GB/s", "asynchronous": True},
        }
    )
    assert loading_of(asked.loading) == Loading(bandwidth=2e9, workers=2)
    assert checkpoint_of(asked.checkpoint) == Checkpoint(100, bandwidth=273e9, asynchronous=True)


def test_a_run_that_says_nothing_loads_and_saves_nothing():
    asked = request_from_mapping(RUN)
    assert (loading_of(asked.loading), checkpoint_of(asked.checkpoint)) == (None, None)


@pytest.mark.parametrize(
    ("section", "keys", "said"),
    [
        ("loading", {}, "either seconds or a bandwidth"),
        ("loading", {"seconds": "1 s", "bandwidth": "1 GB/s"}, "either seconds or a bandwidth"),
        ("loading", {"seconds": "1 s", "bytes_per_token": 2.0}, "leave one out"),
        ("loading", {"seconds": 1}, "has no unit"),
        ("checkpoint", {"every": 100}, "needs a bandwidth"),
        ("checkpoint", {"bandwidth": "1 GB/s"}, "every"),
        ("checkpoint", {"every": 0, "bandwidth": "1 GB/s"}, "every"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(section, keys, said):
    with pytest.raises(InputError, match=said):
        request_from_mapping(RUN | {section: keys})
