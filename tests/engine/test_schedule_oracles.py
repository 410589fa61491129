"""Makespans that are published or follow from a formula, on every engine."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardsim.engine.des import simulate
from shardsim.engine.listing import listing
from shardsim.engine.timeline import stage_spans

# Zero Bubble Pipeline Parallelism (arXiv 2401.10241), Tables 6 and 5: model, p, m, T_F, T_B, T_W, T_comm in ms; bubble
# rates of 1F1B and of interleaved 1F1B; chunks of the latter (Table 3's layers).
ZERO_BUBBLE = [
    ("1.5B", 8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1055, 3),
    ("1.5B", 8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.0818, 3),
    ("1.5B", 8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0443, 3),
    ("6.2B", 8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.0808, 4),
    ("6.2B", 8, 32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.0628, 4),
    ("6.2B", 8, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0320, 4),
    ("14.6B", 16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1104, 3),
    ("14.6B", 16, 64, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.0852, 3),
    ("14.6B", 16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0445, 3),
    ("28.3B", 32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1493, 2),
    ("28.3B", 32, 128, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1164, 2),
    ("28.3B", 32, 256, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0624, 2),
]
IDS = [f"{row[0]}-m{row[2]}" for row in ZERO_BUBBLE]
quarters = st.integers(1, 40).map(lambda n: n / 4)
fixtures_are_pure = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)


@pytest.mark.parametrize(
    ("name", "v", "forward", "backward", "makespan", "idle"),
    [("gpipe", 1, 1.0, 2.0, 33.0, 9.0), ("1f1b", 1, 1.0, 2.0, 33.0, 9.0), ("interleaved", 2, 0.5, 1.0, 28.5, 4.5)],
)
def test_four_stages_and_eight_micro_batches_take_what_the_schedule_diagrams_show(
    engine, schedule, pipeline, name, v, forward, backward, makespan, idle
):
    execution = engine(pipeline(schedule(name, 4, 8, v), forward, backward))
    assert execution.iteration_s == makespan
    assert [stage.seconds["bubble"] for stage in execution.stages] == [idle] * 4


def test_one_stage_has_no_bubble(engine, schedule, pipeline):
    execution = engine(pipeline(schedule("1f1b", 1, 5)))
    assert execution.iteration_s == 15.0
    assert execution.stages[0].seconds["bubble"] == 0.0


@fixtures_are_pure
@given(p=st.integers(1, 9), m=st.integers(1, 24), forward=quarters, backward=quarters)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_plain_pipelines_idle_for_p_minus_1_passes_each_way(engine, schedule, pipeline, name, p, m, forward, backward):
    execution = engine(pipeline(schedule(name, p, m), forward, backward))
    assert execution.iteration_s == (m + p - 1) * (forward + backward)


@fixtures_are_pure
@given(p=st.integers(2, 6), groups=st.integers(1, 4), v=st.integers(2, 4), forward=quarters, backward=quarters)
def test_interleaving_divides_the_bubble_by_the_chunks(engine, schedule, pipeline, p, groups, v, forward, backward):
    m = groups * p
    execution = engine(pipeline(schedule("interleaved", p, m, v), forward, backward))
    assert execution.iteration_s == (m * v + p - 1) * (forward + backward)


@pytest.mark.parametrize("row", ZERO_BUBBLE, ids=IDS)
def test_1f1b_bubble_rates_of_zero_bubble_table_5_follow_from_table_6(engine, schedule, pipeline, row):
    _, p, m, f, b, w, comm, published, _, _ = row
    cost = engine(pipeline(schedule("1f1b", p, m), f, b + w, comm)).iteration_s
    assert round((cost - m * (f + b + w)) / cost, 4) == published


@pytest.mark.parametrize("run", [listing, simulate])
@pytest.mark.parametrize("row", ZERO_BUBBLE, ids=IDS)
def test_the_cost_of_table_5_is_the_longest_span_of_a_stage(run, schedule, pipeline, row):
    """Its definition: from the first start to the last end of a stage, at most over stages; here the first stage's."""
    _, p, m, f, b, w, comm, published, _, _ = row
    spans = stage_spans(run(pipeline(schedule("1f1b", p, m), f, b + w, comm), timeline=True).timeline)
    cost = (spans[:, 1] - spans[:, 0]).max()
    assert round((cost - m * (f + b + w)) / cost, 4) == published


@pytest.mark.parametrize("row", ZERO_BUBBLE, ids=IDS)
def test_interleaved_bubble_rates_of_zero_bubble_table_5_are_near(engine, schedule, pipeline, row):
    """Within 0.0035: the published column lies below this execution by p messages in every row."""
    _, p, m, f, b, w, comm, _, published, v = row
    cost = engine(pipeline(schedule("interleaved", p, m, v), f / v, (b + w) / v, comm)).iteration_s
    assert (cost - m * (f + b + w)) / cost == pytest.approx(published, abs=0.0035)
    shorter = cost - p * comm
    assert round((shorter - m * (f + b + w)) / shorter, 4) == published
