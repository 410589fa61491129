import pytest

from shardsim.program.resolve import resolve
from shardsim.schema.run import request_from_mapping
from shardsim.workload.checkpoint import checkpoint_bytes, saved_bytes


def saved(model, gpus, framework=None, **layout):
    batch = {"global": 1536, "micro": 1, "seq": 2048}
    keys = {"model": model, "cluster": "selene", "gpus": gpus, "layout": layout, "batch": batch}
    run = resolve(request_from_mapping(keys | ({"framework": framework} if framework else {})), priced=False)
    return run, checkpoint_bytes(run.model, run.layout, run.batch, run.framework)


def test_a_trillion_parameters_take_13_8_terabytes():
    """arXiv 2104.04473 §5.10: 14 bytes a parameter are within 3 % of it."""
    _, (whole, rank) = saved("narayanan-1008b", 3072, tp=8, pp=64)
    assert whole == pytest.approx(13.8e12, rel=0.03)
    assert rank == pytest.approx(whole / 3072, rel=0.15)  # the first stage has the embedding besides


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("framework", ["megatron-core", "megatron-2021", "fsdp"])
def test_how_states_are_split_does_not_change_what_is_saved(framework, zero):
    run, (whole, _) = saved("llama-2-7b", 64, framework, tp=1, pp=1, zero=zero)
    masters = run.framework.weights_are_masters and zero == 3
    assert saved_bytes(run.framework, run.layout) == (12 if masters else 14)
    assert whole == pytest.approx((12 if masters else 14) * 6_738_415_616, rel=1e-3)


def test_experts_are_saved_once():
    """Whole Mixtral 8x7B has 46.7 billion parameters."""
    for layout in ({"tp": 1, "ep": 8}, {"tp": 2, "ep": 4}, {"tp": 4, "ep": 1, "etp": 4}, {"tp": 2, "pp": 2, "ep": 2}):
        _, (whole, _) = saved("mixtral-8x7b", 64, "megatron-core", **layout)
        assert whole == pytest.approx(14 * 46.7e9, rel=5e-3)


def test_copies_of_dualpipe_are_saved_once():
    _, (twice, _) = saved("llama-2-7b", 64, "megatron-core", tp=1, pp=4, schedule="dualpipe")
    _, (once, _) = saved("llama-2-7b", 64, "megatron-core", tp=1, pp=4)
    assert twice == pytest.approx(once, rel=1e-9)
