"""What is trained, how it is laid out, and the whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from shardsim.values.bands import ValidatedGroup
from shardsim.values.conditions import NORMAL, Conditions
from shardsim.values.hardware import Cluster, Profile
from shardsim.values.iterations import Checkpoint, Loading
from shardsim.values.num import Num, smaller
from shardsim.values.program import PipelineSchedule
from shardsim.values.provenance import Provenance

Recompute = Literal["none", "selective", "full"]
RecomputeMethod = Literal["uniform", "block"]
OverlapPolicy = Literal["never", "always", "when_it_fits"]
AttentionKind = Literal["unfused", "flash", "flash1", "flash2", "flash3", "cudnn"]
CudaGraphs = Literal["none", "layers", "full"]
MessagePolicy = Literal["never", "not_interleaved", "always"]
BackwardGradients = Literal["no", "pass", "kept"]
RunAhead = Literal["never", "without_pipeline", "warm_up"]
TensorOverlap = Literal["none", "own_shard", "ring", "userbuffers"]
Axis = Literal["tp", "cp", "ep", "dp", "pp"]
ContextComm = Literal["p2p", "all_gather", "a2a", "a2a+p2p"]
Dispatcher = Literal["alltoall", "allgather", "deepep", "hybridep"]
TWO_LEVEL: tuple[Dispatcher, ...] = ("deepep", "hybridep")
"""Dispatchers that send a token to a node once and from there to ranks, with constants of their own in a fabric."""
ExpertProducts = Literal["one_kernel", "streams", "in_turn"]
LowPrecision = Literal["fp8-delayed", "fp8-current", "fp8-block", "mxfp8", "nvfp4"]

NARROW_TYPE: Mapping[LowPrecision, str] = MappingProxyType(
    {"fp8-delayed": "fp8", "fp8-current": "fp8", "fp8-block": "fp8_block", "mxfp8": "fp8", "nvfp4": "fp4"}
)
"""Data type of the products of each low precision: the key of their constants in a kernel profile."""

DEFAULT_ORDER: tuple[Axis, ...] = ("tp", "cp", "dp", "pp")
"""Rank order, fastest axis first. EP and ETP take no ranks of their own: they lie within TP x CP x DP."""


@dataclass(frozen=True, slots=True)
class Moe:
    """A mixture of experts in the place of the MLP. Its experts are MLPs with the model's activation.

    Parameters
    ----------
    experts : int
        Of a layer, without the shared one (-).
    top_k : int
        Experts that each token goes to (-).
    ffn : int
        Width of an expert (-).
    shared_ffn : int
        Width of what every token goes through besides, all shared experts together (-); 0 for none.
    first_dense : int
        Layers at the beginning that keep a plain MLP of the model's ``ffn`` (-).
    every : int
        One in so many of the other layers is a mixture, the last of each group (-).
    shared_gate : bool
        Whether a gate of one number a token weighs the shared experts (Qwen).
    groups, group_limit : int
        Node-limited routing: the experts fall into so many groups, and a token goes to experts of so many of them
        (-); 0 for no limit.
    """

    experts: int
    top_k: int
    ffn: int
    shared_ffn: int = 0
    first_dense: int = 0
    every: int = 1
    shared_gate: bool = False
    groups: int = 0
    group_limit: int = 0


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention: queries, and keys and values together, come out of narrow projections.

    Parameters
    ----------
    q_lora, kv_lora : int
        Widths of the latent vectors of queries, and of keys and values (-); ``q_lora`` 0 for queries projected at once.
    qk_nope_dim, qk_rope_dim : int
        Dimensions of a query or key without and with rotary positions (-); all heads share the latter part of a key.
    v_dim : int
        Dimensions of a value (-).
    """

    q_lora: int
    kv_lora: int
    qk_nope_dim: int
    qk_rope_dim: int
    v_dim: int

    @property
    def qk_dim(self) -> int:
        """Dimensions of a query or key (-)."""
        return self.qk_nope_dim + self.qk_rope_dim


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer: of the GPT or Llama family, with experts or latent attention where it says so.

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
    moe : Moe or None
        Its experts; None for a dense model.
    mla : Mla or None
        Its latent attention, with ``kv_heads`` equal to ``heads`` and ``head_dim`` that of a query; None for grouped
        or plain heads.
    qk_norm : bool
        Whether queries and keys are normalised head by head, with ``head_dim`` weights each (Qwen3).
    window : int
        Keys that a query sees in layers of sliding-window attention (-); 0 where all layers see everything.
    full_every : int
        One in so many layers sees everything, the last of each group (-); 0 for none. Only with a window.
    sinks : bool
        Whether each head has a learned logit that takes attention to nothing (GPT-OSS).
    mtp : int
        Multi-token prediction: further tokens that are predicted, each by a module of its own (-), which is what
        training computes besides. Counts of parameters leave it out unless they say otherwise.
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
    moe: Moe | None = None
    mla: Mla | None = None
    qk_norm: bool = False
    window: int = 0
    full_every: int = 1
    sinks: bool = False
    mtp: int = 0


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
        ZeRO stage, 0 to 3; 1 is Megatron's distributed optimizer, 3 is fully sharded.
    schedule : str
        Name of a pipeline schedule (:data:`shardsim.workload.schedules.NAMES`), or ``custom``.
    recompute : {"none", "selective", "full"}
    order : tuple of str
        Axes from fastest to slowest rank number.
    group : int
        Micro-batches that the interleaved schedule runs through a chunk before the next (-); 0 for pp of them.
    split : tuple of int
        Layers of each virtual stage, first layers first (-); empty for an even split.
    custom : PipelineSchedule or None
        A user's own schedule.
    recompute_modules : tuple of str
        What selective recompute repeats: ``core_attn``, ``mlp``, ``layernorm`` ...
    recompute_method : {"uniform", "block"}
        Of full recompute: layers in units of ``recompute_layers``, or the first ``recompute_layers`` of every chunk.
    recompute_layers : int
        (-); 0 for units of one layer under ``uniform``, and for every layer under ``block``.
    shard : int
        Replicas over which ZeRO splits (-), a divisor of dp, the others holding copies (hybrid sharding); 0 for all.
    reshard : bool
        Under ZeRO 3, whether parameters are given up after the forward pass and gathered again for the backward pass.
    etp : Num
        Expert tensor-parallel degree (-). Experts have groups of their own: of the tp x cp x dp ranks of a pipeline
        stage, the fastest ``etp`` split each expert, the next ``ep`` hold others, the rest hold the same.
    cp_comm : {"p2p", "all_gather", "a2a", "a2a+p2p"}
        How context parallelism moves keys and values, by Megatron's names: around a ring behind attention; gathered
        whole before it (Llama 3); heads for tokens in an all-to-all (Ulysses); that among ``cp_inner`` ranks and a ring
        over the rest.
    cp_inner : int
        Ranks of the inner all-to-all of ``a2a+p2p`` (-).
    cp_zigzag : bool
        Whether ranks have two chunks each, one from either end, so that causal attention is balanced.
    dispatcher : {"alltoall", "allgather", "deepep", "hybridep"}
        How tokens reach their experts and come back: one all-to-all; gathered by all, and summed back; in two levels,
        one copy to a node and from there to its ranks (DeepEP, HybridEP).
    capacity_factor : float
        Rows that an expert takes, over those of balanced routing (-): the others are dropped; 0 for dropless.
    pads_capacity : bool
        Whether every expert works on as many rows as it may take.
    imbalance : Num
        Rows of the busiest expert-parallel rank over the mean (-), 1 for balanced routing.
    overlap_experts : bool
        Whether tokens of one micro-batch travel while another is computed: forward and backward passes of the steady
        state run as pairs.
    mtp_stage : int or None
        Virtual stage that holds the modules of multi-token prediction (-); None for the last one.
    """

    tp: Num
    pp: Num
    dp: Num
    cp: Num = 1
    ep: Num = 1
    vpp: Num = 1
    sp: bool = False
    zero: int = 0
    schedule: str = "1f1b"
    recompute: Recompute = "none"
    order: tuple[Axis, ...] = DEFAULT_ORDER
    group: int = 0
    split: tuple[int, ...] = ()
    custom: PipelineSchedule | None = None
    recompute_modules: tuple[str, ...] = ("core_attn",)
    recompute_method: RecomputeMethod = "uniform"
    recompute_layers: int = 0
    shard: int = 0
    reshard: bool = True
    etp: Num = 1
    cp_comm: ContextComm = "p2p"
    cp_inner: int = 0
    cp_zigzag: bool = True
    dispatcher: Dispatcher = "alltoall"
    capacity_factor: float = 0.0
    pads_capacity: bool = False
    imbalance: Num = 1.0
    overlap_experts: bool = False
    mtp_stage: int | None = None

    @property
    def gpus(self) -> Num:
        """Ranks in all (-)."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def sharing(self) -> Num:
        """Replicas over which ZeRO splits (-)."""
        return smaller(self.shard, self.dp) if self.shard else self.dp

    @property
    def shards(self) -> Num:
        """Parts into which ZeRO splits, a rank of ``dp`` x ``cp`` having one (-)."""
        return self.sharing * self.cp


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
    stack_profile : str
        Name or path of the stack profile.
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
    overlap_dgrad : bool
        The input gradient of a column-parallel projection is summed over ranks beside its weight gradient.
    tp_overlap : {"none", "own_shard", "ring", "userbuffers"}
        How sequence parallelism gathers and scatters beside the products of a layer: not; beside the product of a
        rank's own tokens; shard by shard around the ring; so, but scattering in four parts (Transformer Engine).
    parallel_block : bool
        Attention and MLP take one norm's output and are summed into one residual (MegaScale's, PaLM's and GPT-J's
        block): one gathering and one scattering a pass in the place of two.
    bucket_bytes_per_replica : float
        A bucket is at least so much times the data-parallel degree [bytes].
    first_bucket_bytes : float
        Size of the first gradient bucket of a pass [bytes]; 0 where it is like the others.
    buckets_first_chunk_only : bool
        Whether only the first chunk of the first stage has buckets; every other chunk is reduced as a whole.
    overlap_param_gather : bool
        Whether parameters that ZeRO 1 and 2 updated are gathered, bucket by bucket, while the first forward pass runs.
    reduces_units : bool
        Whether ZeRO 2 and 3 reduce the gradients of what is gathered together (a layer, an end of the model) as one;
        otherwise in buckets.
    gathers_ahead : int
        Under ZeRO 3, layers whose parameters the forward pass gathers ahead of the one that computes (-); the backward
        pass gathers one ahead.
    reductions_in_flight : int
        Reductions that may be under way when another is ready, before computation waits (-); 0 for no limit.
    kept_parts : tuple of str
        Under ZeRO 3, parts whose parameters stay gathered between a forward pass and its backward pass: ``embedding``,
        ``head``.
    gathers_ends_together : bool
        Whether embedding and head, where a chunk has both, are gathered and reduced as one.
    copies_gathered : bool
        Whether gathered parameters are copied to where they are used.
    pipeline_accumulates : bool
        Whether, where there is a pipeline, ZeRO 2 and 3 reduce gradients after the last backward pass only.
    reshards_in_pipeline : bool
        Whether, where there is a pipeline and the layout says nothing, ZeRO 3 gives up parameters after a forward pass.
    rules : str
        Name of the rule set by which layouts are valid, or the path of its file.
    moment_bytes : int
        Bytes of each of Adam's two moments (-).
    weights_are_masters : bool
        Under ZeRO 3, the shards are fp32 masters, with gradients in fp32, and only gathered weights are narrower.
    gather_buffers : int
        Buffers for inputs that sequence parallelism gathers, b s h elements each (-).
    ddp_buckets : bool
        PyTorch's DistributedDataParallel holds buckets of all gradients in the type of the weights, without ZeRO.
    backward_gradients : {"no", "pass", "kept"}
        Whether gradients of a whole backward pass are there in the type of the weights before they are added to a wider
        sum; and whether they are kept until the next backward pass, and widened tensor by tensor.
    runs_ahead : {"never", "without_pipeline", "warm_up"}
        Where the host issues so much work ahead of the device that freed tensors, which communication streams still
        read, cannot be used again: nowhere, in passes without a pipeline, in the forward passes before the first
        backward pass.
    tensors_run_ahead : int
        The most of them (-): queues of launches are of finite length.
    gathers_by_copy : bool
        Weights that ZeRO 1 and 2 updated are gathered through flat copies: a rank's part, and twice the whole.
    step_bytes : float
        Temporaries of the optimizer step, for each parameter that a rank updates [bytes].
    loss_moment_bytes : int
        Bytes a logit that the loss needs for a moment beside the softmax it keeps (-); 0 for what ``loss_in_place``
        implies.
    workspace_bytes : float
        Workspaces of matrix-product libraries that the caching allocator holds [bytes].
    activation_share : float
        Share of the memory reserved for activations and logits that they fill at the peak (-), before
        ``allocated_share``.
    fused_norms : bool
        A norm is part of the linear layer after it, so that selective recompute of ``layernorm`` repeats only those
        in front of experts and of latent attention.
    sums_copies_every_pass : bool
        Where ZeRO splits over some of the replicas and reduces gradients in every backward pass, whether the others add
        theirs in every one as well; otherwise in the last.
    dispatcher : {"alltoall", "allgather", "deepep", "hybridep"}
        How tokens reach their experts where the layout does not say.
    cp_comm : {"p2p", "all_gather", "a2a", "a2a+p2p"}
        How context parallelism communicates where the layout does not say.
    fused_permute : bool
        Whether tokens are put into the order of their experts by one kernel each way; otherwise by several.
    fused_router : bool
        Whether scores, choice and weights of experts come out of one kernel; otherwise of several.
    expert_products : {"one_kernel", "streams", "in_turn"}
        How the products of a rank's experts are done: in one kernel; each in its own, several at a time on streams; one
        after another.
    overlap_shared_experts : bool
        Whether shared experts are computed while tokens travel.
    splits_experts : bool
        Whether experts have the tensor-parallel degree of the rest where the layout does not say; otherwise 1.
    recompute_modules : tuple of str
        What selective recompute repeats where the layout does not say.
    narrow_dispatch : bool
        Whether tokens, and gradients backward, are dispatched in the data type of the experts' products where that is
        below 16 bits, converted before they are sent (DeepSeek-V3); results come back in 16 bits.
    delays_weights : bool
        Whether gradients of experts' weights are computed while those of their inputs travel back.
    narrow_activation_inputs : bool
        Whether inputs of activations are kept for the backward pass in the type of linear layers where that is below 16
        bits.
    attention_output_bytes : float
        Bytes of an element of the attention output, where linear layers run below 16 bits and it is kept once for both
        the kernel and the projection behind it (-); 0 where each has its own.
    narrow_weights_time : float
        Time that products for weight gradients take below 16 bits, over that of the library which the device's profile
        was fitted to (-): of stacks with kernels of their own.
    narrow_weights_provenance : Provenance or None
        Where that comes from; None where it is 1.
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
    stack_profile: str = "none"
    host_profile: str = ""
    cuda_graphs: CudaGraphs = "none"
    synchronous_messages: MessagePolicy = "never"
    fp8_recipe: Literal["none", "fp8-delayed", "fp8-current", "fp8-block", "mxfp8"] = "none"
    low_precision: LowPrecision | None = None
    overlap_dgrad: bool = False
    tp_overlap: TensorOverlap = "none"
    parallel_block: bool = False
    bucket_bytes_per_replica: float = 0.0
    first_bucket_bytes: float = 0.0
    buckets_first_chunk_only: bool = False
    overlap_param_gather: bool = False
    reduces_units: bool = True
    gathers_ahead: int = 1
    reductions_in_flight: int = 0
    kept_parts: tuple[str, ...] = ()
    gathers_ends_together: bool = False
    copies_gathered: bool = False
    pipeline_accumulates: bool = False
    reshards_in_pipeline: bool = True
    rules: str = "megatron-core"
    moment_bytes: int = 4
    weights_are_masters: bool = False
    gather_buffers: int = 1
    ddp_buckets: bool = False
    backward_gradients: BackwardGradients = "no"
    runs_ahead: RunAhead = "never"
    tensors_run_ahead: int = 0
    gathers_by_copy: bool = False
    step_bytes: float = 0.0
    loss_moment_bytes: int = 0
    workspace_bytes: float = 0.0
    activation_share: float = 1.0
    fused_norms: bool = False
    sums_copies_every_pass: bool = False
    dispatcher: Dispatcher = "alltoall"
    cp_comm: ContextComm = "p2p"
    fused_permute: bool = False
    fused_router: bool = False
    expert_products: ExpertProducts = "one_kernel"
    overlap_shared_experts: bool = False
    splits_experts: bool = True
    recompute_modules: tuple[str, ...] = ("core_attn",)
    narrow_dispatch: bool = False
    delays_weights: bool = False
    narrow_activation_inputs: bool = False
    attention_output_bytes: float = 0.0
    narrow_weights_time: float = 1.0
    narrow_weights_provenance: Provenance | None = None


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
    conditions : Conditions
        What is not as it should be on the machine.
    loading : Loading or None
        How the next batch is loaded; None where that is in nobody's way.
    checkpoint : Checkpoint or None
        How states are saved; None where they are not.
    validated : tuple of ValidatedGroup
        Measured runs that predictions were compared with, those most alike first.
    """

    model: Model
    cluster: Cluster
    layout: Layout
    batch: Batch
    framework: Framework
    profile: Profile
    precision: str
    warnings: tuple[str, ...] = ()
    conditions: Conditions = NORMAL
    loading: Loading | None = None
    checkpoint: Checkpoint | None = None
    validated: tuple[ValidatedGroup, ...] = ()

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
