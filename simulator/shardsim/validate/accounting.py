"""Quantities that frameworks derive from a layout: padded vocabulary, elastic micro-batch, Megatron's memory report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from shardsim.schema.framework import load_framework
from shardsim.validate.casefacts import Case
from shardsim.values.training import Batch, Layout, Model
from shardsim.workload.megatron_report import megatron_report
from shardsim.workload.parameters import padded_vocab

_NUMBER = r"([0-9][0-9,]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)"


@dataclass(frozen=True, slots=True)
class Account:
    """What a formula gives for a case.

    Parameters
    ----------
    text : str
        For people.
    values : mapping of str to float
        Figures by what a table calls them; the name is empty where there is one alone.
    because : str
        The formula with its values.
    missing : tuple of str
        Columns that the formula needs and the row leaves out.
    """

    text: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    because: str = ""
    missing: tuple[str, ...] = ()

    def error(self, stated: str) -> float | None:
        """Compare with a stated value.

        Parameters
        ----------
        stated : str
            A number, or figures after their names.

        Returns
        -------
        float or None
            The largest of predicted / stated - 1 (-); None where nothing is stated that compares.
        """
        errors = []
        for name, value in self.values.items():
            found = _after(name, stated)
            if found is not None:
                errors.append(value / found - 1 if found else float(value != 0))
        if not errors:
            return float(self.text.strip().lower() != stated.strip().lower()) if stated else None
        return max(errors, key=abs)


def _after(name: str, text: str) -> float | None:
    """Read the figure after a name: the last before the next name, so that a sum shown on the way is passed over."""
    if not name:
        match = re.fullmatch(rf"\s*{_NUMBER}\s*(?:\w+)?\s*", text)
        return float(match[1].replace(",", "")) if match else None
    part = re.search(rf"{re.escape(name)}([^;]*)", text, re.IGNORECASE)
    if part is None:
        return None
    sums = part[1].rsplit("=", 1)[-1]
    match = re.search(rf"{_NUMBER}\s*(GiB|GB|MiB|MB|B)?", sums)
    return None if match is None else float(match[1].replace(",", "")) * _UNITS[match[2] or "B"]


_UNITS = {"B": 1.0, "MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30}


def _vocabulary(case: Case) -> Account:
    """Megatron pads the vocabulary to a multiple of 128 (or as asked) times the tensor-parallel degree."""
    tp = case.facts.get("tp")
    if case.vocab is None or not isinstance(tp, int):
        return Account(missing=tuple(n for n, there in (("vocab", case.vocab), ("tp", tp)) if there is None))
    asked = case.facts.get("make_vocab_size_divisible_by")
    framework = load_framework("megatron-core")
    framework = replace(framework, vocab_multiple=asked) if isinstance(asked, int) else framework
    low, high = (float(padded_vocab(replace(_SHAPELESS, vocab=size), framework, tp)) for size in case.vocab)
    because = f"the next multiple of {framework.vocab_multiple} x tp {tp} = {framework.vocab_multiple * tp}"
    if low != high:
        return Account(f"{low:.0f} to {high:.0f}", {}, because)
    return Account(f"{low:.0f}", {"": low}, because)


def _elastic_micro_batch(case: Case) -> Account:
    """DeepSpeed's elasticity takes the largest micro-batch that divides what a data-parallel rank has of the batch."""
    tp, gpus, dp, batch = (case.facts.get(name) for name in ("tp", "gpus", "dp_asked", "global_batch"))
    sizes = [int(size) for size in re.findall(r"\d+", case.settings.get("micro_batch_sizes", ""))]
    if not isinstance(dp, int) and isinstance(gpus, int) and isinstance(tp, int) and gpus % tp == 0:
        dp = gpus // tp
    if not isinstance(dp, int) or not isinstance(batch, int) or not sizes:
        needed = (("dp", dp), ("gbs", batch), ("micro_batch_sizes", sizes or None))
        return Account(missing=tuple(name for name, there in needed if there is None))
    fitting = [size for size in sizes if size and batch // dp % size == 0]
    because = f"the largest of {', '.join(map(str, sizes))} that divides {batch} // dp {dp} = {batch // dp}"
    return Account(str(max(fitting)), {"": max(fitting)}, because) if fitting else Account("None", {}, because)


def _report(case: Case) -> Account:
    """Megatron-LM's report of theoretical memory."""
    needed = ("layers", "hidden", "heads", "ffn", "seq", "tp", "pp", "micro_batch")
    missing = [name for name in needed if not isinstance(case.facts.get(name), int)]
    if case.vocab is None:
        missing.append("vocab")
    dp = _degree(case, "dp_asked") or (_degree(case, "gpus") // max(1, _degree(case, "tp") * _degree(case, "pp")))
    if not dp:
        missing.append("dp")
    if missing or case.vocab is None:
        return Account(missing=tuple(missing))
    model = case.model or _shape(case)
    vpp, micro = _degree(case, "vpp") or 1, _degree(case, "micro_batch")
    layout = Layout(_degree(case, "tp"), _degree(case, "pp"), dp, vpp=vpp, zero=_degree(case, "zero"))
    sequences = _degree(case, "global_batch") or dp * micro * int(layout.pp)
    split_sequence = bool(case.facts.get("sp_asked", layout.tp == 1))
    lean = split_sequence and any(word in case.recompute for word in ("selective", "flash"))
    vocab = int(padded_vocab(replace(model, vocab=case.vocab[1]), load_framework("megatron-core"), layout.tp))
    found = megatron_report(model, layout, Batch(sequences, micro, _degree(case, "seq")), vocab, lean=lean)
    values = {
        "weights+optimizer": found.weights_and_optimizer,
        "activations": found.activations,
        "total": found.total,
    }
    text = "; ".join(
        (
            f"weights+optimizer {found.weights_and_optimizer / 1e9:.2f}e9 B",
            f"activations {found.activations / 1e9:.2f}e9 B",
            f"total {found.total / 2**30:.2f} GiB",
        )
    )
    formula = "sequence parallelism and selective recompute" if lean else "neither sequence parallelism nor recompute"
    return Account(
        text, values, f"{found.parameters / 1e9:.3f}e9 parameters on the fullest rank; formula for {formula}"
    )


def _degree(case: Case, name: str) -> int:
    value = case.facts.get(name)
    return value if isinstance(value, int) else 0


_SHAPELESS = Model("", 1, 1, 1, 1, 1, 1, 1, "gelu", "layernorm", "rope", 0, True, False, False, "")  # noqa: FBT003


def _shape(case: Case) -> Model:
    """The model that the columns describe: of the Llama family unless its MLP is four times as wide as the model."""
    layers, hidden, heads, ffn = (_degree(case, name) for name in ("layers", "hidden", "heads", "ffn"))
    llama = ffn != 4 * hidden
    return replace(
        _SHAPELESS,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_degree(case, "kv_heads") or heads,
        head_dim=hidden // heads,
        ffn=ffn,
        activation="swiglu" if llama else "gelu",
        norm="rmsnorm" if llama else "layernorm",
        tied_embeddings=not llama,
    )


ACCOUNTS: Mapping[str, Callable[[Case], Account]] = MappingProxyType(
    {"padded vocab": _vocabulary, "micro batch": _elastic_micro_batch, "megatron report": _report}
)
"""Formulas by how the outcome begins."""
