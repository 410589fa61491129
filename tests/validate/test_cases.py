"""Cases that others met: what their frameworks said, and what our rules and formulas say."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardsim.cli.main import main
from shardsim.errors import InputError
from shardsim.validate.casefacts import read_case, stack
from shardsim.validate.cases import CaseRow, validate_cases

SHARED = Path(__file__).parents[2].parent / "shared" / "cases.csv"
HEADER = (
    "case_id,kind,framework,model,layers,hidden,ffn,heads,kv_heads,vocab,experts_topk,seq,gpus,tp,pp,vpp,cp,ep,dp,mbs,"
    "gbs,optimizer_sharding,recompute,precision,other,outcome,value"
)
COLUMNS = next(csv.reader([HEADER]))

Decide = Callable[..., CaseRow]


@pytest.fixture
def decide(tmp_path: Path) -> Decide:
    def one(**cells: object) -> CaseRow:
        path = tmp_path / "cases.csv"
        row = {"case_id": "X", "kind": "validity", "framework": "Megatron-LM", **cells}
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS)
            writer.writeheader()
            writer.writerow(row)
        return validate_cases(path).rows[0]

    return one


@pytest.mark.parametrize(
    ("cells", "answer", "said"),
    [
        # github NVIDIA/Megatron-LM, issues 1304, 468, 2718 and 1778
        ({"layers": 30, "pp": 4}, "error", "30 layers do not divide by pp 4"),
        ({"layers": 80, "pp": 16, "other": "num-layers-per-virtual-pipeline-stage=2"}, "error", "5 layers of a stage"),
        (
            {
                "layers": 48, "pp": 2,
                "other": "num_layers_in_first_pipeline_stage=11, num_layers_in_last_pipeline_stage=13",
            },
            "error",
            "both stages hold 24",
        ),
        ({"layers": 20, "pp": 1, "other": "decoder-last-pipeline-num-layers=1"}, "error", "only stage holds 1 of"),
        # github NVIDIA-NeMo/Megatron-Bridge, pull requests 4604 and 5884: what was wrong, and what it became
        ({"layers": 48, "gpus": 128, "tp": 2, "pp": 8, "vpp": 4, "ep": 16}, "error", "6 layers of a stage do not"),
        ({"layers": 48, "gpus": 128, "tp": 2, "pp": 8, "vpp": 2, "ep": 16}, "ok", "chunks"),
        ({"layers": 60, "pp": 8}, "error", "60 layers do not divide by pp 8"),
        (
            {
                "layers": 60, "pp": 8, "vpp": 4,
                "other": "decoder-first-pipeline-num-layers=4 decoder-last-pipeline-num-layers=8",
            },
            "ok",
            "rules that hold",
        ),
        ({"layers": 14, "pp": 4, "other": "layout Ett|(tt|)*5tt|ttL, alltoall"}, "error", "stages hold 16 layers"),
        ({"layers": 16, "pp": 4, "other": "layout Ett|(tt|)*6ttL, alltoall"}, "ok", "rules that hold"),
        # github deepspeedai/DeepSpeed, issue 3634
        ({"framework": "DeepSpeed/vLLM", "heads": 52, "tp": 8}, "error", "(one of 1, 2, 4, 13, 26, 52)"),
        ({"framework": "DeepSpeed/vLLM", "heads": 52, "tp": 4}, "ok", "heads"),
        ({"framework": "DeepSpeed", "pp": 2, "optimizer_sharding": "ZeRO-3"}, "error", "ZeRO stage 3 with a pipeline"),
        ({"framework": "DeepSpeed", "pp": 1, "optimizer_sharding": "ZeRO-3"}, "ok", "zero-with-pipeline"),
        ({"framework": "DeepSpeed", "dp": 8, "mbs": 4, "gbs": 32, "other": "gas=2"}, "error", "x 2 accumulated"),
        ({"framework": "Megatron-DeepSpeed", "pp": 2, "optimizer_sharding": "ZeRO-2"}, "error", "ZeRO stage 2"),
        # experts and sequence parallelism, github ROCm/Megatron-LM, pull request 85
        ({"model": "Mixtral-8x7B", "tp": 2, "other": "sequence_parallel=off"}, "error", "without sequence parallelism"),
        ({"experts_topk": "8/2", "tp": 2, "other": "no SP"}, "error", "without sequence parallelism"),
        ({"model": "Llama3-8B", "tp": 2, "other": "sequence_parallel=off"}, "ok", "rules that hold"),
        ({"experts_topk": "8/2", "tp": 2, "other": "sequence_parallel=on"}, "ok", "rules that hold"),
        ({"experts_topk": "60/4", "ep": 8}, "error", "60 experts do not divide by ep 8"),
        ({"tp": 1, "other": "sequence_parallel=on"}, "warning", "sequence parallelism is switched off"),
        # batches, github aliyun/SimAI, issue 202
        (
            {"framework": "SimAI/Megatron", "gpus": 1472, "tp": 8, "pp": 8, "dp": 23, "mbs": 1, "gbs": 32},
            "error",
            "a global batch of 32 does not divide by micro-batch 1 x dp 23",
        ),
        ({"gpus": 1472, "tp": 8, "pp": 8, "dp": 23, "mbs": 1, "gbs": 46}, "ok", "rules that hold"),
        ({"pp": 4, "vpp": 2, "dp": 1, "mbs": 1, "gbs": 6}, "error", "6 micro-batches do not divide by 4"),
        ({"pp": 1, "vpp": 2}, "error", "interleaved on 1 pipeline stage"),
        ({"seq": 4100, "cp": 4}, "error", "do not divide by 2 x cp 4"),
        ({"framework": "torchtitan", "kv_heads": 8, "heads": 32, "tp": 16}, "error", "8 key-value heads"),
        ({"framework": "Megatron-LM", "kv_heads": 8, "heads": 32, "tp": 16}, "ok", "kv-heads"),
        # a layout string is written out before its layers are counted
        ({"pp": 4, "heads": 8, "tp": 2, "other": "layout Ett|(tt|)*6ttL"}, "ok", "heads"),
        ({"layers": 32, "pp": 4, "other": "pp-layout=zzz"}, "error", "'zzz' holds z"),
        ({"layers": 32, "tp": -2, "pp": 0}, "error", "tp -2 is not a count (a whole number, 1 or more); pp 0 is not a"),
        ({"layers": 2.5, "pp": 1}, "error", "layers 2.5 is not a count"),
        ({"layers": 32, "pp": 4, "vpp": 0, "ep": 0}, "ok", "layers"),  # no chunks, no experts
        ({"layers": 30, "pp": 4, "other": "blah=x="}, "error", "cannot be read: blah=x="),
        ({"layers": 32, "pp": 4, "other": "schedule=1F1B, tp <= 8"}, "ok", "layers"),
    ],
)  # fmt: skip
def test_rules_decide_what_a_row_states(decide: Decide, cells: dict[str, object], answer: str, said: str) -> None:
    row = decide(**cells, outcome=answer)
    assert (row.status, row.predicted, row.error) == ("ok", answer, 0.0), row.reason
    assert said in row.reason


def test_a_wrong_answer_counts_as_wrong(decide: Decide) -> None:
    assert decide(layers=30, pp=4, outcome="ok").error == 1.0
    assert decide(layers=32, pp=4, outcome="error").error == 1.0


def test_what_depends_on_experts_is_answered_as_it_is_asked(decide: Decide) -> None:
    row = decide(tp=2, other="sequence_parallel=off", outcome="error iff MoE")
    assert (row.predicted, row.error) == ("error iff MoE", 0.0)
    assert decide(tp=2, other="sequence_parallel=on", outcome="error iff MoE").error == 1.0


@pytest.mark.parametrize(
    ("vocab", "tp", "padded"),
    [("32000<v<=32256", 2, "32256"), ("50257", 8, "51200"), ("32000", 1, "32000"), ("32001", 8, "32768")],
)
def test_the_vocabulary_is_padded_as_megatron_does(decide: Decide, vocab: str, tp: int, padded: str) -> None:
    row = decide(kind="accounting", vocab=vocab, tp=tp, outcome="padded vocab", value=padded)
    assert (row.measured, row.predicted, row.error) == (padded, padded, 0.0)


def test_a_range_of_vocabularies_may_have_several_answers(decide: Decide) -> None:
    row = decide(kind="accounting", vocab="32000<=v<=32256", tp=2, outcome="padded vocab", value="32256")
    assert row.predicted == "32000 to 32256"
    asked = "make-vocab-size-divisible-by=64"
    row = decide(kind="accounting", vocab="32001", tp=2, other=asked, outcome="padded vocab", value="32128")
    assert row.predicted == "32128"


@pytest.mark.parametrize(
    ("tp", "sizes", "size"),
    [(1, "4, 8", "4"), (2, "4, 8", "8"), (4, "4, 8", "8"), (2, "8", "8"), (4, "8", "8"), (1, "8", "None")],
)
def test_deepspeeds_elastic_micro_batch_is_that_of_a_replica(decide: Decide, tp: int, sizes: str, size: str) -> None:
    """The table of github deepspeedai/DeepSpeed, pull request 8395: 16 GPUs, a batch of 64."""
    row = decide(
        kind="accounting", framework="DeepSpeed elastic v0.2", gpus=16, tp=tp, gbs=64,
        other=f"micro_batch_sizes=[{sizes}]", outcome="micro batch", value=size,
    )  # fmt: skip
    assert (row.predicted, row.error) == (size, 0.0)


def test_megatrons_report_is_compared_figure_by_figure(decide: Decide) -> None:
    shape = {
        "layers": 32, "hidden": 4096, "ffn": 11008, "heads": 32, "vocab": 32000, "seq": 4096, "gpus": 8, "tp": 1,
        "pp": 1, "dp": 8, "mbs": 2, "gbs": 128, "recompute": "none (flash)",
        "optimizer_sharding": "distributed optimizer",
    }  # fmt: skip
    value = "weights+optimizer 6.738e9*(6+12/8)=50.5e9 B; activations 32.1e9 B; total 76.9 GiB (tight on 80 GB)"
    row = decide(kind="accounting", outcome="Megatron report formula", value=value, **shape)
    assert row.predicted == "weights+optimizer 50.54e9 B; activations 32.09e9 B; total 76.95 GiB"
    assert row.error is not None
    assert abs(row.error) < 1e-3
    row = decide(kind="accounting", outcome="Megatron report formula", value="total 100 GiB", **shape)
    assert row.error == pytest.approx(-0.2305, abs=1e-3)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"kind": "memory"}, "cases of kind memory are not decided by rules"),
        ({"framework": "vLLM", "heads": 40, "tp": 3}, "no rules for the framework vLLM"),
        ({"framework": "Megatron-Bridge", "layers": 30, "pp": 4}, "no rules for the framework Megatron-Bridge"),
        ({"framework": ""}, "no rules for the framework that is not stated"),
        ({"tp": 8}, "no rule can be decided from what is stated"),
        (
            {"layers": 32, "pp": 4, "other": "overlap-param-gather=on"},
            "no rule knows what is stated: overlap_param_gather",
        ),
        ({"layers": "thirtytwo", "pp": 4}, "cannot be read: layers thirtytwo"),
        ({"gpus": 64, "tp": 8, "pp": 1, "cp": "two", "mbs": 1, "gbs": 9}, "cannot be read: cp two"),
        ({"layers": 32, "pp": 4, "outcome": "banana"}, "the outcome 'banana' is none of error, warning and ok"),
        ({"layers": 32, "pp": 4, "outcome": ""}, "no outcome is stated"),
        ({"layers": 32, "pp": 4, "other": "="}, "cannot be read: ="),
        ({"layers": 32, "pp": 4, "other": "a=b=c"}, "cannot be read: a=b=c"),
        ({"layers": 32, "pp": 4, "other": "blah=7"}, "no rule knows what is stated: blah"),
        (
            {"layers": 32, "pp": 4, "other": "num-layers-per-virtual-pipeline-stage=zz"},
            "cannot be read: virtual_stage_layers=zz",
        ),
        ({"layers": 32, "pp": 4, "other": "stage-layers=even"}, "cannot be read: stage_layers=even"),
        ({"layers": 32, "pp": 4, "other": "schedule=banana"}, "cannot be read: schedule=banana"),
        ({"layers": 32, "pp": 4, "tp": 4, "heads": 32, "other": "tp=99"}, "cannot be read: tp=99 beside tp 4"),
        ({"layers": 32, "pp": 4, "other": "tp=on"}, "cannot be read: tp=on"),
        ({"kind": "accounting", "outcome": "padded vocab", "vocab": 32000, "tp": -2}, "tp -2 is not a count"),
        ({"kind": "accounting", "outcome": "padded vocab", "vocab": 32000, "tp": "two"}, "cannot be read: tp two"),
        ({"kind": "accounting", "outcome": "MFU"}, "no formula for MFU"),
        ({"kind": "accounting", "outcome": "padded vocab", "vocab": 32000}, "not stated: tp"),
        ({"kind": "accounting", "outcome": "Megatron report formula", "layers": 8}, "not stated: hidden, heads, ffn"),
    ],
)
def test_what_cannot_be_decided_is_skipped_with_the_reason(
    decide: Decide, cells: dict[str, object], reason: str
) -> None:
    for outcome in (cells.get("outcome", "error"), cells.get("outcome", "ok")):
        row = decide(**{**cells, "outcome": outcome})
        assert (row.status, row.predicted, row.error) == ("skipped", "", None)
        assert row.reason.startswith(reason)


def test_stacks_are_split_into_their_parts() -> None:
    assert stack("DeepSpeed/vLLM") == ("deepspeed", "vllm")
    assert stack("") == ()


def test_a_model_of_the_catalog_gives_what_the_row_leaves_out() -> None:
    case = read_case(1, {"model": "Llama-2-7B", "tp": "3"})
    assert (case.facts["heads"], case.facts["ffn"]) == (32, 11008)
    assert "llama-2-7b" in case.notes[0]
    assert "heads" not in read_case(1, {"model": "Llama-2-7B", "layers": "30"}).facts


def test_rows_are_named_by_their_column_or_their_number() -> None:
    assert [read_case(3, cells).id for cells in ({"id": "a"}, {"case_id": "b"}, {})] == ["a", "b", "3"]


def test_a_table_without_its_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cases.csv"
    path.write_text("kind,framework\nvalidity,Megatron-LM\n")
    with pytest.raises(InputError, match="outcome"):
        validate_cases(path)


def test_the_command_writes_one_row_for_every_row(tmp_path: Path) -> None:
    path, out = tmp_path / "cases.csv", tmp_path / "rows.csv"
    path.write_text("id,kind,framework,layers,pp,outcome\nA,validity,Megatron-LM,30,4,error\nB,perf,vLLM,,,ok\n")
    result = CliRunner().invoke(main, ["validate", "cases", str(path), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "1 of 1 cases right, 1 of 2 skipped" in result.output
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [(row["id"], row["measured"], row["predicted"], row["error"], row["status"]) for row in rows] == [
        ("A", "error", "error", "0.0", "ok"), ("B", "ok", "", "", "skipped"),
    ]  # fmt: skip
    result = CliRunner().invoke(main, ["validate", "cases", str(path), "--json"])
    assert '"decided": 1' in result.output


@pytest.mark.skipif(not SHARED.is_file(), reason="the table of cases is not beside the project")
def test_every_case_of_the_shared_table_that_can_be_decided_is_right() -> None:
    table = validate_cases(SHARED)
    assert [row.id for row in table.decided if row not in table.right] == []
    assert {row.id for row in table.decided} >= {"C01", "C03", "C05", "C07", "C13", "C17", "C19", "C55", "C63"}
