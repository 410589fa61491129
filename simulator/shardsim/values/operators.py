"""What a rank does, as counts: shapes, bytes and FLOP, no hardware and no seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from shardsim.values.num import Num, smaller, where
from shardsim.values.training import Dispatcher

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]
Direction = Literal["dispatch", "combine"]
GradientRole = Literal["forward", "dgrad", "wgrad"]
MatrixLayout = Literal["tn", "nn", "nt"]


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
    layout : {"tn", "nn", "nt"}
        How the operands lie in memory, in the words of BLAS: ``tn`` has k contiguous in both (y = x Wᵀ, a linear layer
        forward), ``nn`` k in the first and n in the second (input gradient), ``nt`` m and n (weight gradient).
    output_bytes : int or None
        Bytes of an element of the result, where they differ from the operands' (-).
    accumulates : bool
        Whether the result is added to what is there, and so is read as well.
    data_type : str
        Of the operands, such as ``fp8``; empty for that of all products of the run.
    grouped : {"", "one_kernel", "streams"}
        Where the ``batch`` products are those of a rank's experts, each with ``m`` rows (for a weight gradient, ``k``)
        under balanced routing, and share the device: in one kernel, or in ``kernels`` of their own on several streams.
    imbalance : Num
        Rows of the busiest rank over the mean (-), for which the others wait. FLOP are counted without.
    kernels : Num
        Kernels that the ``batch`` products are dealt out to evenly, one after another (-).
    """

    name: str
    m: Num
    k: Num
    n: Num
    batch: Num = 1
    element_bytes: int = 2
    role: GradientRole = "forward"
    attention: bool = False
    layout: MatrixLayout = "tn"
    output_bytes: int | None = None
    accumulates: bool = False
    data_type: str = ""
    grouped: Literal["", "one_kernel", "streams"] = ""
    imbalance: Num = 1.0
    kernels: Num = 1

    @property
    def flop(self) -> Num:
        """Floating point operations, 2 a multiply-add (-)."""
        return 2.0 * self.batch * self.m * self.k * self.n

    @property
    def bytes_moved(self) -> Num:
        """Least memory traffic: both operands read, the result written, and read where it accumulates [bytes]."""
        return self.bytes_at(self.element_bytes)

    def bytes_at(self, operand_bytes: float) -> Num:
        """Least memory traffic with operands of another width, such as 1 for fp8 [bytes]."""
        operands = (self.m * self.k + self.k * self.n) * operand_bytes
        return self.batch * (operands + self.m * self.n * self.result_bytes * (2 if self.accumulates else 1))

    @property
    def result_bytes(self) -> int:
        """Bytes of an element of the result (-)."""
        return self.element_bytes if self.output_bytes is None else self.output_bytes

    @property
    def leading_dimensions(self) -> tuple[Num, Num, Num]:
        """Contiguous dimension of the first operand, the second, and the result (-)."""
        first = self.m if self.layout == "nt" else self.k
        return first, self.k if self.layout == "tn" else self.n, self.n


@dataclass(frozen=True, slots=True)
class Attention:
    """A fused attention kernel over whole sequences, or over a chunk of queries and the keys that it is given.

    Parameters
    ----------
    name : str
    batch, heads, kv_heads, seq : Num
        b, a/t, k/t, s (-).
    head_dim : int
        d of queries and keys (-).
    causal : bool
        Whether the masked half of the scores is skipped.
    role : {"forward", "dgrad"}
        The backward pass recomputes the scores: 5 products instead of 2.
    element_bytes : int
        Bytes of an element (-).
    library : str
        Whose kernel: ``flash1``, ``flash2``, ``flash3``, ``cudnn``, or ``flash`` for the best that was measured.
    v_head_dim : int or None
        d of the values (-) where it differs (multi-head latent attention).
    window : int
        Keys that a query sees, itself among them (-); 0 for all. Causal attention only.
    keys : Num or None
        Keys and values (-) where they are not as many as the ``seq`` queries. Under a causal mask there are more of
        them, and the queries are the last.
    """

    name: str
    batch: Num
    heads: Num
    kv_heads: Num
    seq: Num
    head_dim: int
    causal: bool
    role: GradientRole = "forward"
    element_bytes: int = 2
    library: str = "flash"
    v_head_dim: int | None = None
    window: int = 0
    keys: Num | None = None

    @property
    def value_dim(self) -> int:
        """Head dimension of the values (-)."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def key_count(self) -> Num:
        """Keys and values (-)."""
        return self.seq if self.keys is None else self.keys

    @property
    def scores(self) -> Num:
        """Score matrix elements that are computed, all heads together: half of a causal one (-)."""
        matrices = self.batch * self.heads
        if not self.causal:
            return matrices * self.seq * self.key_count
        return matrices * (self._seen_until(self.key_count) - self._seen_until(self.key_count - self.seq))

    def _seen_until(self, position: Num) -> Num:
        """Scores of all queries before a position, each with the keys before it that its window holds (-)."""
        seen = where(self.window > 0, smaller(position, self.window), position)
        return seen * (position - 0.5 * seen)

    @property
    def flop(self) -> Num:
        """Floating point operations that the kernel executes (-)."""
        d, v = self.head_dim, self.value_dim
        return 2.0 * self.scores * (d + v if self.role == "forward" else 3 * d + 2 * v)

    @property
    def bytes_moved(self) -> Num:
        """Least memory traffic: Q, K, V and the output, and their gradients in the backward pass [bytes]."""
        rows = self.seq * self.heads + self.key_count * self.kv_heads
        tensors = self.batch * rows * (self.head_dim + self.value_dim)
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
        ``cross_entropy``, ``transpose``, ``optimizer``, ``quantize``, ``routing`` (choice of experts), ``permute`` (of
        tokens into their order and back), ``context`` (around the blocks of context parallelism).
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
    kind : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"}
        ``send_recv`` is a step of a ring: each member sends to the next and receives from the one before.
    axis : str
        ``tp``, ``dp``, ``cp``, ``ep``, ``etp`` (ranks that split an expert), ``edp`` (that hold the same experts),
        ``cp_inner`` and ``cp_outer`` (of an all-to-all within a ring), ``embedding`` (first and last stage), ``model``
        (all of a replica).
    size : Num
        The whole buffer, as nccl-tests counts it [bytes]: the input of an all-reduce, the gathered output of an
        all-gather, the unreduced input of a reduce-scatter, all that a rank sends in an all-to-all, itself included;
        of a ``send_recv``, what one rank sends.
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
class TokenExchange:
    """Tokens on their way to the experts that they go to, or back: who needs what, not yet how many bytes.

    Parameters
    ----------
    name : str
    direction : {"dispatch", "combine"}
        The backward pass of either is the other (github deepseek-ai/DeepEP, README.md).
    tokens : Num
        That this rank sends to experts (-), each of them to ``top_k`` of ``experts``.
    experts, top_k : int
        (-).
    hidden : int
        Elements of a token (-).
    element_bytes : float
        Bytes of an element on the wire, its share of the scales included (-).
    dispatcher : {"alltoall", "allgather", "deepep", "hybridep"}
    groups, group_limit : int
        Node-limited routing, as of :class:`shardsim.values.training.Moe` (-).
    imbalance : Num
        What the busiest rank receives over the mean (-).
    share : Num
        Of the copies, those that are sent (-): what an expert has no room for is dropped; what it pads is sent.
    role : {"forward", "dgrad", "wgrad"}
    """

    name: str
    direction: Direction
    tokens: Num
    experts: int
    top_k: int
    hidden: int
    element_bytes: float
    dispatcher: Dispatcher = "alltoall"
    groups: int = 0
    group_limit: int = 0
    imbalance: Num = 1.0
    share: Num = 1.0
    role: GradientRole = "forward"


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


Operator: TypeAlias = Gemm | Attention | Elementwise | Collective | TokenExchange | OptimizerStep


def for_weights(operator: Operator) -> bool:
    """Whether an operator computes gradients of weights, or prepares that.

    Parameters
    ----------
    operator : Operator

    Returns
    -------
    bool
    """
    return isinstance(operator, Gemm | Elementwise) and operator.role == "wgrad"
