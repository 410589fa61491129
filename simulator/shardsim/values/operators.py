"""What a rank does, as counts: shapes, bytes and FLOP, no hardware and no seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from shardsim.values.num import Num

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
GradientRole = Literal["forward", "dgrad", "wgrad"]


@dataclass(frozen=True, slots=True)
class Gemm:
    """A (batched) matrix product (m, k) x (k, n).

    Parameters
    ----------
    name : str
        Such as ``qkv``.
    m, k, n : Num
        Shape (-).
    batch : Num
        Independent products in one kernel (-).
    element_bytes : int
        Bytes of an element of the operands and the result (-).
    role : {"forward", "dgrad", "wgrad"}
    attention : bool
        Whether it is one of the score-matrix products, which selective recompute repeats.
    """

    name: str
    m: Num
    k: Num
    n: Num
    batch: Num = 1
    element_bytes: int = 2
    role: GradientRole = "forward"
    attention: bool = False

    @property
    def flop(self) -> Num:
        """Floating point operations, 2 a multiply-add (-)."""
        return 2.0 * self.batch * self.m * self.k * self.n

    @property
    def bytes_moved(self) -> Num:
        """Least memory traffic: both operands read, the result written [bytes]."""
        return self.batch * (self.m * self.k + self.k * self.n + self.m * self.n) * self.element_bytes


@dataclass(frozen=True, slots=True)
class Attention:
    """A fused (flash) attention kernel over whole sequences.

    Parameters
    ----------
    name : str
    batch, heads, kv_heads, seq, head_dim : Num
        b, a/t, k/t, s, d (-).
    causal : bool
        Whether the masked half of the scores is skipped.
    role : {"forward", "dgrad"}
        The backward pass recomputes the scores: 5 products instead of 2.
    """

    name: str
    batch: Num
    heads: Num
    kv_heads: Num
    seq: Num
    head_dim: Num
    causal: bool
    role: GradientRole = "forward"
    element_bytes: int = 2

    @property
    def flop(self) -> Num:
        """Floating point operations that the kernel executes (-)."""
        products = 2.0 if self.role == "forward" else 5.0
        scores = self.batch * self.heads * self.seq * self.seq * self.head_dim
        return products * 2.0 * scores * (0.5 if self.causal else 1.0)

    @property
    def bytes_moved(self) -> Num:
        """Least memory traffic: Q, K, V and the output, and their gradients in the backward pass [bytes]."""
        tensors = self.batch * self.seq * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return tensors * self.element_bytes * (1.0 if self.role == "forward" else 2.0)


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Memory-bound kernels of one kind.

    Parameters
    ----------
    name : str
    kind : str
        Kernel kind, the key of its efficiency in the calibration profile: ``layernorm``, ``rmsnorm``, ``gelu``,
        ``swiglu``, ``dropout``, ``add``, ``bias_dropout_add``, ``softmax``, ``rope``, ``embedding``,
        ``cross_entropy``, ``transpose``, ``optimizer``.
    bytes_moved : Num
        Read plus written, by all the kernels together [bytes].
    kernels : Num
        Kernels launched (-).
    role : {"forward", "dgrad", "wgrad"}
    attention : bool
        Whether it works on the score matrix, and so is repeated by selective recompute.
    """

    name: str
    kind: str
    bytes_moved: Num
    kernels: Num = 1
    role: GradientRole = "forward"
    attention: bool = False

    @property
    def flop(self) -> Num:
        """Not counted: bandwidth decides (-)."""
        return 0.0


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over the group of one axis.

    Parameters
    ----------
    name : str
    kind : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"}
    axis : str
        ``tp``, ``dp``, ``cp``, ``ep``, ``embedding`` (first and last stage), ``model`` (all of a replica).
    size : Num
        The whole buffer, as nccl-tests counts it [bytes]: the input of an all-reduce, the gathered output of an
        all-gather, the unreduced input of a reduce-scatter.
    role : {"forward", "dgrad", "wgrad"}
    """

    name: str
    kind: CollectiveKind
    axis: str
    size: Num
    role: GradientRole = "forward"


@dataclass(frozen=True, slots=True)
class SendRecv:
    """A message to the neighbouring pipeline stage.

    Parameters
    ----------
    name : str
    size : Num
        What one rank sends [bytes].
    gather : Num
        What the tensor-parallel group gathers on arrival (scatter-gather) [bytes]; 0 for nothing.
    """

    name: str
    size: Num
    gather: Num = 0.0


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """Everything between the last gradient and the next iteration, on one rank.

    Parameters
    ----------
    name : str
    parameters : Num
        Parameters that this rank updates (-).
    bytes_moved : Num
        Memory traffic of unscaling, norm, clipping, update and copies [bytes].
    kernels : Num
        Kernels launched (-).
    """

    name: str
    parameters: Num
    bytes_moved: Num
    kernels: Num


Operator: TypeAlias = Gemm | Attention | Elementwise | Collective | OptimizerStep
