"""Makespans that are published or follow from a formula, on every engine."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardsim.engine.des import simulate
from shardsim.engine.listing import listing
from shardsim.engine.timeline import stage_spans

# Zero Bubble Pipeline Parallelism (arXiv 2401.10241), Tables 6 and 5: model, p, m, T_F, T_B, T_W, T_comm in ms; bubble
# rates of 1F1B and of interleaved 1F1B; chunks of the latter (Table 3's layers); bubble rates of ZB-H1 and ZB-H2.
ZERO_BUBBLE = [
    ("1.5B", 8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1055, 3, 0.1585, 0.1083),
    ("1.5B", 8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.0818, 3, 0.1242, 0.0837),
    ("1.5B", 8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0443, 3, 0.0674, 0.0444),
    ("6.2B", 8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.0808, 4, 0.1323, 0.0698),
    ("6.2B", 8, 32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.0628, 4, 0.1045, 0.0559),
    ("6.2B", 8, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0320, 4, 0.0554, 0.0294),
    ("14.6B", 16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1104, 3, 0.1397, 0.0672),
    ("14.6B", 16, 64, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.0852, 3, 0.1088, 0.0516),
    ("14.6B", 16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0445, 3, 0.0576, 0.0266),
    ("28.3B", 32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1493, 2, 0.1421, 0.0641),
    ("28.3B", 32, 128, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1164, 2, 0.1106, 0.0490),
    ("28.3B", 32, 256, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0624, 2, 0.0594, 0.0257),
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


def test_zb_h1_takes_what_its_diagram_shows(engine, schedule, pipeline):
    execution = engine(pipeline(schedule("zb-h1", 4, 8)))
    assert execution.iteration_s == 27.0
    assert [stage.seconds["bubble"] for stage in execution.stages] == [3.0] * 4


@pytest.mark.parametrize("run", [listing, simulate])
def test_a_later_stage_of_zb_h1_idles_less_between_its_first_and_its_last_pass(run, schedule, pipeline):
    spans = stage_spans(run(pipeline(schedule("zb-h1", 4, 8)), timeline=True).timeline)
    assert (spans[:, 1] - spans[:, 0] - 24.0).tolist() == [3.0, 2.0, 1.0, 0.0]


@pytest.mark.parametrize("run", [listing, simulate])
@pytest.mark.parametrize(("name", "p", "m", "chunks"), [("zb-h2", 4, 8, 1), ("zb-v", 4, 8, 2), ("zb-v", 4, 12, 2)])
def test_stages_of_a_zero_bubble_schedule_never_idle_between_their_passes(run, schedule, pipeline, name, p, m, chunks):
    spans = stage_spans(run(pipeline(schedule(name, p, m, chunks)), timeline=True).timeline)
    assert (spans[:, 1] - spans[:, 0]).tolist() == [3.0 * m * chunks] * p
    assert sorted(spans[:, 1]) == [3.0 * m * chunks + stage for stage in range(p)]


@pytest.mark.parametrize(("name", "ranks", "m", "makespan"), [
    ("dualpipe", 8, 20, 66.0), ("dualpipe", 4, 8, 26.0), ("dualpipe", 2, 4, 12.0), ("dualpipe", 16, 40, 134.0),
    ("dualpipe", 16, 120, 374.0),
    ("dualpipev", 4, 10, 66.0), ("dualpipev", 2, 4, 26.0), ("dualpipev", 4, 8, 54.0), ("dualpipev", 8, 20, 134.0),
])  # fmt: skip
def test_ranks_of_dualpipe_idle_alike_and_finish_together(engine, schedule, pipeline, name, ranks, m, makespan):
    """Bubble of (PP/2 - 1)(F&B + B - 3W), github deepseek-ai/DualPipe README; a rank of DualPipeV is two stages."""
    execution = engine(pipeline(schedule(name, ranks, m, 2)))
    stages = ranks if name == "dualpipe" else 2 * ranks
    assert execution.iteration_s == makespan
    assert [stage.seconds["bubble"] for stage in execution.stages] == [(stages / 2 - 1) * 2.0] * ranks


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
    _, p, m, f, b, w, comm, published, *_ = row
    cost = engine(pipeline(schedule("1f1b", p, m), f, b + w, comm)).iteration_s
    assert round((cost - m * (f + b + w)) / cost, 4) == published


@pytest.mark.parametrize("run", [listing, simulate])
@pytest.mark.parametrize("row", ZERO_BUBBLE, ids=IDS)
@pytest.mark.parametrize(("name", "column"), [("1f1b", 7), ("zb-h1", 10), ("zb-h2", 11)])
def test_bubble_rates_of_zero_bubble_table_5_follow_from_table_6(run, schedule, pipeline, name, column, row):
    """The cost is by its definition the longest span of a stage, from its first start to its last end."""
    _, p, m, f, b, w, comm, *_ = row
    program = pipeline(schedule(name, p, m), f, b + w, comm, input_gradient=b, weight_gradient=w)
    spans = stage_spans(run(program, timeline=True).timeline)
    cost = (spans[:, 1] - spans[:, 0]).max()
    assert round((cost - m * (f + b + w)) / cost, 4) == row[column]


@pytest.mark.parametrize("row", ZERO_BUBBLE, ids=IDS)
def test_interleaved_bubble_rates_of_zero_bubble_table_5_are_near(engine, schedule, pipeline, row):
    """Within 0.0035: the published column lies below this execution by p messages in every row."""
    _, p, m, f, b, w, comm, _, published, v, *_ = row
    cost = engine(pipeline(schedule("interleaved", p, m, v), f / v, (b + w) / v, comm)).iteration_s
    assert (cost - m * (f + b + w)) / cost == pytest.approx(published, abs=0.0035)
    shorter = cost - p * comm
    assert round((shorter - m * (f + b + w)) / shorter, 4) == published
