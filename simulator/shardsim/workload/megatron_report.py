"""What Megatron-LM's own report says about memory: its formulas, for comparison with what people quote from it.

Not what this package counts: that is in ``allocations``.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardsim.values.training import Batch, Layout, Model


@dataclass(frozen=True, slots=True)
class MegatronReport:
    """Memory of the most loaded rank by Megatron-LM's report.

    Parameters
    ----------
    parameters : float
        On that rank (-).
    weights_and_optimizer, activations : float
        [bytes].
    """

    parameters: float
    weights_and_optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """Both together [bytes]."""
        return self.weights_and_optimizer + self.activations


def megatron_report(model: Model, layout: Layout, batch: Batch, padded_vocab: int, *, lean: bool) -> MegatronReport:
    """Evaluate the formulas of Megatron-LM's memory report.

    Parameters
    ----------
    model : Model
    layout : Layout
        Scalars; ``zero`` of 1 or more is the distributed optimizer.
    batch : Batch
    padded_vocab : int
        (-).
    lean : bool
        Whether sequence parallelism and selective recompute are on (flash attention does what the latter does); the
        report has another formula without.

    Returns
    -------
    MegatronReport

    Notes
    -----
    github NVIDIA/Megatron-LM, megatron/training/theoretical_memory_usage.py; Korthikanti et al. 2022, arXiv 2205.05198,
    Table 2.
    """
    tp, pp, dp = float(layout.tp), float(layout.pp), float(layout.dp)
    embedding = model.hidden * padded_vocab
    ends = embedding * (2 if pp == 1 and not model.tied_embeddings else 1)
    parameters = (_block_parameters(model) / pp + ends) / tp
    each = 6 + 12 / dp if layout.zero else 18
    activations = _lean(model, layout, batch, padded_vocab) if lean else _plain(model, layout, batch, padded_vocab)
    return MegatronReport(parameters, parameters * each, activations)


def _block_parameters(model: Model) -> float:
    h, width = model.hidden, model.head_dim * model.heads
    gated = 1.5 if model.activation == "swiglu" else 1.0
    norms = 1 if model.norm == "rmsnorm" else 2
    attention = 2 * h * width * (1 + model.kv_heads / model.heads)
    dense = 2 * h * (model.ffn * gated + norms) + attention
    moe = model.moe
    if moe is None:
        return dense * model.layers + norms * h
    experts = 2 * h * ((moe.ffn * moe.experts + moe.shared_ffn) * gated + norms) + attention
    mixed = (model.layers - moe.first_dense) // moe.every
    return experts * mixed + dense * (model.layers - mixed) + norms * h


def _lean(model: Model, layout: Layout, batch: Batch, vocab: int) -> float:
    tokens, h = float(batch.seq_len * batch.micro_batch), model.hidden
    held = tokens * h * (18 + 4 * model.ffn / h) * model.layers + _embedding(tokens, h, float(layout.pp))
    held *= _in_flight(layout, batch)
    if layout.pp == 1:
        held += 4 * tokens * h * (1 + vocab / h)
    return held / float(layout.tp)


def _plain(model: Model, layout: Layout, batch: Batch, vocab: int) -> float:
    tokens, h, tp = float(batch.seq_len * batch.micro_batch), model.hidden, float(layout.tp)
    held = tokens * h * (10 + 24 / tp) * model.layers + _embedding(tokens, h, float(layout.pp))
    held *= _in_flight(layout, batch)
    if layout.pp == 1:
        held += 2 * tokens * (vocab / tp + h)
    return 1.05 * held


def _embedding(tokens: float, hidden: int, pp: float) -> float:
    return tokens * pp * (8 + hidden)


def _in_flight(layout: Layout, batch: Batch) -> float:
    """Share of all layers' activations that the first stage holds (-)."""
    pp, vpp = float(layout.pp), float(layout.vpp)
    if vpp > 1:
        return 1 + (pp - 1) / (pp * vpp)
    return min(1.0, float(batch.micro_batches(layout)) / pp)
