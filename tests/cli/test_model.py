"""``shardsim model show``: shape, parameters, operators."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from shardsim.cli.main import main


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["model", "show", *arguments])


def test_gpt3_has_175_billion_parameters() -> None:
    result = _run("gpt3-175b", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert 174e9 < found["parameters"] < 176e9
    assert found["layer_parameters"] == 12 * 12288**2 + 13 * 12288


def test_operators_carry_the_shapes_of_one_rank() -> None:
    found = json.loads(_run("gpt3-175b", "--tp", "8", "--micro-batch", "2", "--seq", "1024", "--json").stdout)
    (qkv,) = (operator for operator in found["operators"] if operator["name"] == "qkv")
    assert (qkv["operator"], qkv["m"], qkv["k"], qkv["n"]) == ("gemm", 2048, 12288, 3 * 12288 / 8)
    assert qkv["flop"] == 2 * 2048 * 12288 * 3 * 12288 / 8


def test_a_layer_has_four_all_reduces_under_tensor_parallelism() -> None:
    """arXiv 1909.08053, section 3: two forward and two backward, of b s h elements each."""
    found = json.loads(_run("gpt3-175b", "--tp", "8", "--json").stdout)
    sizes = [operator["size"] for operator in found["operators"] if operator.get("kind") == "all_reduce"]
    assert sizes == [2048 * 12288 * 2] * 4


def test_the_table_fits_100_columns() -> None:
    result = _run("llama-3-405b", "--tp", "8", "--sp")
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 100
    for words in ("405.9B", "126", "128 of 128, 8 key-value", "swiglu", "rmsnorm", "reduce_scatter", "mlp up wgrad"):
        assert words in result.stdout


def test_a_hugging_face_config_is_a_model(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "tie_word_embeddings": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = _run(str(tmp_path / "config.json"), "--json")
    assert result.exit_code == 0, result.stderr
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 256 + 2 * 64
    assert json.loads(result.stdout)["parameters"] == 2 * layer + 2 * 128 * 64 + 64


def test_a_mixture_of_experts_shows_all_parameters_and_those_of_a_token() -> None:
    result = _run("deepseek-v3", "--tp", "8", "--sp")
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 100
    for words in ("671B", "37.55B", "61, 58 with experts", "256 of 2,048, 8 a token", "187,107,328 parameters"):
        assert words in result.stdout
    found = json.loads(_run("deepseek-v3", "--json").stdout)
    kinds = {(item["layer"]["experts"], item["layer"]["window"]) for item in found["operators"]}
    assert kinds == {(False, 0), (True, 0)}
    assert 3 * found["layer_parameters"] + 58 * found["expert_layer_parameters"] < found["parameters"]
    assert (found["moe"]["top_k"], found["mla"]["kv_lora"]) == (8, 512)


def test_a_dense_model_has_one_kind_of_layer() -> None:
    found = json.loads(_run("llama-3-8b", "--json").stdout)
    assert found["moe"] is found["mla"] is None
    assert found["expert_layer_parameters"] == 0
    assert found["active_parameters"] == found["parameters"]


def test_an_unknown_model_is_answered_with_near_ones() -> None:
    result = _run("gpt3-175")
    assert result.exit_code == 2
    assert "did you mean gpt3-175b" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_layout_that_does_not_divide_is_refused_with_the_legal_values() -> None:
    result = _run("gpt3-175b", "--tp", "7")
    assert result.exit_code == 2
    assert "error: " in result.stderr
    assert "Traceback" not in result.stderr


def test_each_kind_of_layer_shows_its_operators() -> None:
    result = _run("gpt-oss-120b", "--ep", "8")
    assert result.exit_code == 0, result.stderr
    for words in ("a layer with experts, with a window of 128", "EP8", "116.8B", "18 with a window", "dispatch"):
        assert words in result.stdout
    found = json.loads(_run("gpt-oss-120b", "--ep", "8", "--json").stdout)
    seen = {item["window"] for item in found["operators"] if item["operator"] == "attention"}
    assert seen == {0, 128}
    up = next(item for item in found["operators"] if item["name"] == "experts up")
    assert (up["batch"], up["m"]) == (128 / 8, 2048 * 4 * 8 / 128)


def test_context_parallelism_shows_what_moves_keys_and_values() -> None:
    result = _run("llama-3-8b", "--cp", "4", "--cp-comm", "all_gather")
    assert result.exit_code == 0, result.stderr
    assert "over cp" in result.stdout
    assert "CP4 by all_gather" in result.stdout


def test_degrees_of_experts_without_experts_are_refused() -> None:
    result = _run("llama-3-8b", "--ep", "2")
    assert result.exit_code == 2
    assert "ep" in result.stderr
