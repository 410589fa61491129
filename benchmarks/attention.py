"""How well fused attention is predicted: published curves, lengths and heads left out, other kinds of head and mask.

``python -m benchmarks.attention --published figures.csv [--tables DIR]``. Errors are |predicted / measured - 1|.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from shardsim.calibrate.attention import AttentionPoints, fit_attention, predict, read_published, read_table
from shardsim.calibrate.attentions import WIDTHS, figure_files, fit_recipes, gathered
from shardsim.calibrate.measured import measured_folder
from shardsim.cost.attention import attention_seconds
from shardsim.schema.hardware import load_device
from shardsim.schema.kernels import load_kernel_profile
from shardsim.values.operators import Attention

TABLES = (
    ("a100-sxm-80gb", "flash2", "a100_sxm", "flash_attention"),
    ("a100-sxm-80gb", "flash2", "a100_sxm", "vllm_flash_attn"),
    ("h100-sxm-80gb", "flash3", "h100_sxm", "fa3"),
    ("h100-sxm-80gb", "flash3", "h100_sxm", "vllm_flash_attn_fa3"),
    ("h100-sxm-80gb", "cudnn", "h100_sxm", "torch_flow"),
    ("b200-sxm", "cudnn", "b200_sxm", "torch_flow"),
    ("gb300", "cudnn", "gb300", "torch_flow"),
    ("l40s", "flash2", "l40s", "vllm_flash_attn_fa2"),
)
LONG = 8192


def line(label: str, error: np.ndarray) -> str:
    if not len(error):
        return f"  {label:58} no rows"
    off = np.abs(error)
    return (
        f"  {label:58} n {len(off):5}  median {np.median(off):6.1%}  p90 {np.quantile(off, 0.9):6.1%}  "
        f"bias {np.median(error):+6.1%}"
    )


def curves(figures: Mapping[tuple[str, str], AttentionPoints], tables: Path) -> Iterator[str]:
    yield "Published curves: as fitted, and with each sequence length left out in turn"
    fitted, held = [], []
    for name, recipe, fits in fit_recipes(figures, tables):
        device = load_device(recipe.device)
        for part in recipe.parts:
            if not part.own:
                continue
            points, found = gathered(part, figures, tables), fits[part.library]
            own = points.level == ""
            errors = found.fit.predicted[own] / points.seconds[own] - 1.0
            left = np.full(len(points), np.nan)
            fixed = {key: found.fit.constants[key] for key in (*part.lent, "overhead")}
            for length in np.unique(points.seq[own]):
                test = own & (points.seq == length)
                constants = fit_attention(points.where(~test), device, part.library, fixed).fit.constants
                left[test] = predict(points.where(test), device, part.library, constants) / points.seconds[test] - 1.0
            yield line(f"{name} {part.library}, as fitted", errors)
            yield line(f"{name} {part.library}, lengths left out", left[own])
            fitted.append(errors)
            held.append(left[own])
    yield line("all, as fitted", np.concatenate(fitted))
    yield line("all, lengths left out", np.concatenate(held))


def database(tables: Path) -> Iterator[str]:
    yield "Measured database, prefills of 1024 tokens and more, each table a fit of its own"
    for name, library, system, kernel in TABLES:
        device = load_device(name)
        whole = read_table(tables, system, kernel)
        points = whole.where((whole.window == 0) & np.isin(whole.head_dim, WIDTHS))
        counts = np.unique(points.heads)
        splits = {"half of the head counts left out": np.isin(points.heads, counts[1::2]), "long": points.seq >= LONG}
        for label, test in splits.items():
            constants = fit_attention(points.where(~test), device, library).fit.constants
            error = predict(points.where(test), device, library, constants) / points.seconds[test] - 1.0
            yield line(f"{system} {kernel}, {label}", error)
        halves = [fit_attention(points.where(np.arange(len(points)) % 2 == half), device, library) for half in (0, 1)]
        shares = [{k: v for k, v in half.fit.constants.items() if k.startswith("eff")} for half in halves]
        moved = max(abs(shares[0][key] / shares[1][key] - 1.0) for key in shares[0])
        yield f"  {'':58} efficiencies of two disjoint halves differ by at most {moved:.1%}"
        for window in np.unique(whole.window[whole.window > 0]):
            some = (whole.window == window) & np.isin(whole.head_dim, WIDTHS) & (whole.seq > window)
            constants = fit_attention(points, device, library).fit.constants
            error = predict(whole.where(some), device, library, constants) / whole.seconds[some] - 1.0
            yield line(f"{system} {kernel}, window of {window}, from the fit without", error)


def other_heads(tables: Path) -> Iterator[str]:
    yield "Encoders on H100 by FlashAttention-3 (not causal), shipped constants, from 1024 tokens and 16 heads on"
    constants = load_kernel_profile("h100-sxm").attention
    device = load_device("h100-sxm-80gb")
    for path in sorted(tables.rglob("h100_sxm/**/encoder_attention_perf.parquet")):
        table = pd.read_parquet(path)
        if not table["kernel_source"].iloc[0].endswith(("fa3", "v3")):
            continue
        for width in (64, 72, 80):
            some = table[(table["head_dim"] == width) & (table["isl"] >= 1024) & (table["num_heads"] >= 16)]
            heads, batch, seq = (some[c].to_numpy(float) for c in ("num_heads", "batch_size", "isl"))
            operator = Attention("encoder", batch, heads, heads, seq, width, causal=False, library="flash3")
            found = attention_seconds(operator, device, constants, "bf16")
            yield line(f"{some['kernel_source'].iloc[0]}, head dimension {width}", found / some["latency"] / 1e-3 - 1.0)
    yield "Latent attention in DeepSeek-V3's published trace (H800, 4096 tokens, 128 heads): forward, backward"
    operator = Attention("mla", 1, 128, 128, 4096, 192, causal=True, v_head_dim=128)
    for library in constants.libraries:
        pair = (replace(operator, library=library, role=role) for role in ("forward", "dgrad"))
        times = [attention_seconds(one, load_device("h800-sxm"), constants, "bf16") * 1e6 for one in pair]
        published = (1237.0, 3779.0)
        compared = (f"{us:.0f} us of {of:.0f} ({us / of - 1:+.1%})" for us, of in zip(times, published, strict=True))
        yield f"  {library}: {', '.join(compared)}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__.split("\n")[0])
    parser.add_argument("--published", type=Path, action="append", default=[])
    parser.add_argument("--tables", type=Path)
    given = parser.parse_args()
    tables = given.tables or measured_folder()
    for text in curves(read_published(figure_files(given.published)), tables):
        print(text, flush=True)
    for part in (database, other_heads):
        for text in part(tables):
            print(text, flush=True)


if __name__ == "__main__":
    main()
