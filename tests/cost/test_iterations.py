import pytest

from shardsim.cost.iterations import batch_period, batch_seconds, checkpoint_cost
from shardsim.values.iterations import Checkpoint, Loading

SIZES = {"whole": 1e12, "rank": 2e9, "copy_bandwidth": 20e9, "iteration_s": 5.0}


def test_a_batch_is_read_or_takes_what_it_was_measured_to_take():
    assert batch_seconds(Loading(bandwidth=2e9), 1e9) == 2.0
    assert batch_seconds(Loading(seconds=0.12), 1e9) == 0.12
    assert batch_period(Loading(seconds=0.12, workers=4), 1e9) == 0.03


@pytest.mark.parametrize(
    ("checkpoint", "exposed"),
    [
        (Checkpoint(10, bandwidth=100e9), 10.0),  # 1 TB into storage of 100 GB/s
        (Checkpoint(10, bandwidth=1e13, rank_bandwidth=0.5e9), 4.0),  # 2 GB of a rank
        (Checkpoint(10, bandwidth=1e15), 0.1),  # nothing leaves a device faster than over PCIe
        (Checkpoint(10, bandwidth=100e9, asynchronous=True), 0.1),  # 10 s of writing behind 50 s of training
        (Checkpoint(1, bandwidth=100e9, asynchronous=True), 5.1),  # 5 s of it are not over when the next is due
        (Checkpoint(10, bandwidth=100e9, asynchronous=True, copy_bandwidth=10e9), 0.2),
    ],
)
def test_a_checkpoint_stops_training_for_what_nothing_hides(checkpoint, exposed):
    assert checkpoint_cost(checkpoint, **SIZES).exposed_s == pytest.approx(exposed)


def test_a_checkpoint_of_a_trillion_parameters_is_saved_in_less_than_a_minute():
    """13.8 TB at 273 GB/s: arXiv 2104.04473 §5.10."""
    cost = checkpoint_cost(Checkpoint(1, bandwidth=273e9), **SIZES | {"whole": 13.8e12})
    assert cost.write_s == pytest.approx(50.5, abs=0.1)
