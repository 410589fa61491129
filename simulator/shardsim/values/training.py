"""What is trained, how it is laid out, and the whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from shardsim.values.hardware import Cluster, Profile
from shardsim.values.num import Num

Schedule = Literal["gpipe", "1f1b", "interleaved"]
Recompute = Literal["none", "selective", "full"]
OverlapPolicy = Literal["never", "always", "when_it_fits"]
AttentionKind = Literal["unfused", "flash", "flash1", "flash2", "flash3", "cudnn"]
CudaGraphs = Literal["none", "layers", "full"]
MessagePolicy = Literal["never", "not_interleaved", "always"]
Axis = Literal["tp", "cp", "ep", "dp", "pp"]
LowPrecision = Literal["fp8-delayed", "fp8-current", "fp8-block", "mxfp8", "nvfp4"]

NARROW_TYPE: Mapping[LowPrecision, str] = MappingProxyType(
    {"fp8-delayed": "fp8", "fp8-current": "fp8", "fp8-block": "fp8_block", "mxfp8": "fp8", "nvfp4": "fp4"}
)
"""Data type of the products of each low precision: the key of their constants in a kernel profile."""

DEFAULT_ORDER: tuple[Axis, ...] = ("tp", "cp", "dp", "pp")
"""Rank order, fastest axis first. EP lies within DP and takes no ranks of its own."""


@dataclass(frozen=True, slots=True)
class Model:
    """A dense decoder-only transformer of the GPT or Llama family.

    Parameters
    ----------
    name : str
    layers, hidden, heads, kv_heads, head_dim, ffn, vocab : int
        L, h, a, k, d, f, V (-). ``vocab`` is before padding.
    activation : {"gelu", "swiglu"}
    norm : {"layernorm", "rmsnorm"}
    position : {"learned", "rope"}
    max_positions : int
        Length of the learned position table (-); 0 with RoPE.
    tied_embeddings : bool
        Whether the LM head shares the embedding's weight.
    bias : bool
        Whether every linear layer has a bias; ``qkv_bias`` may add one to QKV alone (Qwen).
    qkv_bias : bool
    source : str
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    activation: Literal["gelu", "swiglu"]
    norm: Literal["layernorm", "rmsnorm"]
    position: Literal["learned", "rope"]
    max_positions: int
    tied_embeddings: bool
    bias: bool
    qkv_bias: bool
    source: str


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model is spread over ranks. Degrees are scalars, or arrays over many layouts.

    Parameters
    ----------
    tp, pp, dp, cp, ep : Num
        Degrees of the axes (-).
    vpp : Num
        Chunks a pipeline rank holds (-), 1 without interleaving.
    sp : bool
        Megatron sequence parallelism.
    zero : int
        ZeRO stage, 0 to 3; 1 is Megatron's distributed optimizer.
    schedule : {"gpipe", "1f1b", "interleaved"}
    recompute : {"none", "selective", "full"}
    order : tuple of str
        Axes from fastest to slowest rank number.
    """

    tp: Num
    pp: Num
    dp: Num
    cp: Num = 1
    ep: Num = 1
    vpp: Num = 1
    sp: bool = False
    zero: int = 0
    schedule: Schedule = "1f1b"
    recompute: Recompute = "none"
    order: tuple[Axis, ...] = DEFAULT_ORDER

    @property
    def gpus(self) -> Num:
        """Ranks in all (-)."""
        return self.tp * self.pp * self.dp * self.cp


@dataclass(frozen=True, slots=True)
class Batch:
    """What one iteration trains on.

    Parameters
    ----------
    global_batch : Num
        Sequences an iteration (-).
    micro_batch : Num
        Sequences a micro-batch of one replica (-).
    seq_len : int
        Tokens a sequence (-).
    """

    global_batch: Num
    micro_batch: Num
    seq_len: int

    def micro_batches(self, layout: Layout) -> Num:
        """Micro-batches that one replica runs through its pipeline in an iteration (-)."""
        return self.global_batch / (self.micro_batch * layout.dp)

    @property
    def tokens(self) -> Num:
        """Tokens an iteration (-)."""
        return self.global_batch * self.seq_len


@dataclass(frozen=True, slots=True)
class Framework:
    """What a training framework does. Flags only: every second lives in a calibration profile.

    Parameters
    ----------
    name : str
    attention : {"unfused", "flash", "flash1", "flash2", "flash3", "cudnn"}
        Unfused attention writes the score matrix to memory; the others name the library of the fused kernel, ``flash``
        the best that was measured on the device.
    fused_softmax : bool
        Scale, mask and softmax in one kernel (unfused attention only).
    fused_bias_activation : bool
        Bias and activation in one kernel.
    fused_bias_dropout_add : bool
        Bias, dropout and residual in one kernel.
    fused_optimizer : bool
        One multi-tensor kernel for the whole optimizer step.
    dropout : bool
        Whether dropout kernels run at all.
    scatter_gather : bool
        Pipeline messages are split over the tensor-parallel ranks and gathered on arrival.
    overlap_grad_reduce : {"never", "always", "when_it_fits"}
        Whether gradients are reduced, bucket by bucket, while the backward pass runs. ``when_it_fits`` overlaps
        only where the buckets' copies fit into device memory.
    bucket_bytes : float
        Size of a gradient bucket [bytes].
    gradient_bytes : int
        Bytes of a gradient element on the wire (-).
    recipe : {"fp16", "bf16", "fp32"}
        Precision recipe: which copies of parameters and gradients exist (facts: bytes a parameter).
    default_recompute : {"none", "selective", "full"}
    default_precision : str
    default_zero : int
    sequence_parallel : bool
        Whether SP is on by default where TP > 1.
    vocab_multiple : int
        The vocabulary is padded to a multiple of this times TP (-).
    causal_flop_halved : bool
        Whether unfused or fused attention kernels skip the masked half.
    context_bytes : float
        Device memory taken by the framework and its libraries before the first tensor [bytes].
    source : str
    copies_heads : bool
        Q, K and V are copied into head-major order before the score products ([b, s, h] activations); with
        [s, b, h] activations they are views.
    fused_qkv_bias : bool
        The bias of QKV is added inside the GEMM.
    fused_gradient_accumulation : bool
        Weight gradients are added to those of earlier micro-batches inside the GEMM.
    bucket_copies : bool
        Gradients are copied into buckets and back, which takes memory while they are reduced and time always.
    fused_softmax_max_seq : int
        Longest sequence that the fused softmax kernel takes (-); longer ones run scale, mask and softmax apart.
    host_profile : str
        Name of the calibration profile with the host's times to launch work; empty for a host that is never late.
    cuda_graphs : {"none", "layers", "full"}
        What is captured and launched as a whole: nothing, each layer's passes, whole passes.
    synchronous_messages : {"never", "not_interleaved", "always"}
        Under which schedules the host waits for the device wherever a stage receives or sends a message.
    fp8_recipe : {"none", "fp8-delayed", "fp8-current", "fp8-block", "mxfp8"}
        What the precision ``fp8`` stands for; ``none`` where the framework has no low precision at all.
    low_precision : str or None
        How the linear layers of transformer blocks run below 16 bits in this run; None where they do not.
    """

    name: str
    attention: AttentionKind
    fused_softmax: bool
    fused_bias_activation: bool
    fused_bias_dropout_add: bool
    fused_optimizer: bool
    dropout: bool
    scatter_gather: bool
    overlap_grad_reduce: OverlapPolicy
    bucket_bytes: float
    gradient_bytes: int
    recipe: Literal["fp16", "bf16", "fp32"]
    default_recompute: Recompute
    default_precision: str
    default_zero: int
    sequence_parallel: bool
    vocab_multiple: int
    causal_flop_halved: bool
    context_bytes: float
    source: str
    copies_heads: bool = False
    fused_qkv_bias: bool = False
    fused_gradient_accumulation: bool = False
    bucket_copies: bool = False
    loss_in_place: bool = True
    contiguous_gradients: bool = True
    allocated_share: float = 1.0
    fused_softmax_max_seq: int = 2048
    host_profile: str = ""
    cuda_graphs: CudaGraphs = "none"
    synchronous_messages: MessagePolicy = "never"
    fp8_recipe: Literal["none", "fp8-delayed", "fp8-current", "fp8-block", "mxfp8"] = "none"
    low_precision: LowPrecision | None = None


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One complete, checked description: everything a prediction depends on.

    Parameters
    ----------
    model : Model
    cluster : Cluster
    layout : Layout
    batch : Batch
    framework : Framework
    profile : Profile
    precision : str
        Of the matrix products: a data type (``fp16``, ``bf16`` ...), or how the linear layers of transformer blocks run
        below 16 bits (``fp8-delayed`` ..., see :mod:`shardsim.workload.quantization`).
    warnings : tuple of str
        What was changed or assumed on the way here.
    """

    model: Model
    cluster: Cluster
    layout: Layout
    batch: Batch
    framework: Framework
    profile: Profile
    precision: str
    warnings: tuple[str, ...] = ()

    @property
    def peak_type(self) -> str:
        """Data type whose dense peak MFU is a share of: that of the linear layers of transformer blocks."""
        if self.framework.low_precision is None:
            return self.precision
        return "fp4" if self.framework.low_precision == "nvfp4" else "fp8"

    @property
    def linear_type(self) -> str:
        """Data type of those layers, as a kernel profile names it."""
        low = self.framework.low_precision
        return self.precision if low is None else NARROW_TYPE[low]

    @property
    def wide_type(self) -> str:
        """Data type of the products that never run below 16 bits: attention and the LM head."""
        return self.precision if self.framework.low_precision is None else self.framework.recipe
