"""Validity rules as data: conditions over named facts, with what to say where one does not hold."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, TypeAlias

Fact: TypeAlias = int | float | str | bool | None
"""A number, a word or a truth; None where it is not known."""

FACTS: Mapping[str, str] = MappingProxyType(
    {
        "layers": "transformer layers of the model",
        "hidden": "hidden width",
        "heads": "attention heads",
        "kv_heads": "key-value heads",
        "head_dim": "width of a head; unknown where it follows from hidden and heads",
        "ffn": "width of the MLP",
        "vocab": "vocabulary before padding",
        "max_positions": "length of the learned position table; 0 with rotary positions",
        "bias": "whether every linear layer has a bias",
        "moe": "whether the model has experts",
        "experts": "experts of a layer; 0 without",
        "top_k": "experts a token goes to; 0 without",
        "expert_ffn": "width of an expert; 0 without",
        "shared_experts": "whether there are shared experts",
        "expert_groups": "groups that experts fall into for node-limited routing; 0 without",
        "group_limit": "groups that a token's experts may lie in; 0 without",
        "mla": "whether attention is latent",
        "window": "keys that a query sees in layers of sliding-window attention; 0 without",
        "sinks": "whether heads have a learned logit that takes attention to nothing",
        "mtp": "further tokens that are predicted",
        "gpus": "GPUs in all",
        "tp": "tensor-parallel degree",
        "pp": "pipeline-parallel degree",
        "cp": "context-parallel degree",
        "ep": "expert-parallel degree",
        "etp": "expert tensor-parallel degree",
        "cp_comm": "how context parallelism communicates: p2p, all_gather, a2a or a2a+p2p",
        "cp_inner": "ranks of the inner all-to-all of a2a+p2p; 0 where none are given",
        "dispatcher": "how tokens reach their experts: alltoall, allgather, deepep or hybridep",
        "capacity_factor": "rows that an expert takes over those of balanced routing; 0 for all",
        "pads_capacity": "whether experts work on as many rows as they may take",
        "overlap_experts": "whether tokens of one micro-batch travel while another is computed",
        "overlap_shared": "whether the framework computes shared experts while tokens travel",
        "attention": "the framework's attention: unfused, or a library of fused kernels",
        "parallel_block": "whether the framework has attention and MLP side by side",
        "dp": "data-parallel degree: gpus over replica, where that divides",
        "dp_asked": "data-parallel degree as it was given",
        "vpp": "chunks a pipeline rank holds",
        "replica": "ranks of one replica: tp x pp x cp",
        "virtual_stages": "virtual stages of one copy of the model",
        "chunk_layers": "layers of the largest chunk",
        "split": "whether layers of stages are given, so that they need not be even",
        "sp": "sequence parallelism, where tp is above 1",
        "sp_asked": "sequence parallelism as it was given",
        "sp_default": "whether the framework has sequence parallelism on by default",
        "zero": "ZeRO stage",
        "shard": "replicas over which ZeRO splits; 0 for all",
        "schedule": "name of the pipeline schedule",
        "group": "micro-batches of a group of the interleaved schedule; 0 for pp of them",
        "recompute": "none, selective or full",
        "recompute_layers": "layers of a unit of full recompute; 0 for the default",
        "recomputes_experts": "whether selective recompute names a part of experts",
        "recomputes_moe": "whether selective recompute repeats whole layers of experts",
        "recomputes_shared": "whether selective recompute names shared experts",
        "recomputes_mla": "whether selective recompute names a part of latent attention",
        "cuda_graphs": "what is captured in CUDA graphs: none, layers or full",
        "precision": "data type of the matrix products",
        "global_batch": "sequences an iteration",
        "micro_batch": "sequences a micro-batch of one replica",
        "microbatches": "micro-batches a replica, where the batch divides",
        "accumulation": "micro-batches a replica as they were given: gradient accumulation steps",
        "seq": "tokens a sequence",
    }
)
"""What rules may speak of."""

_BINARY: Mapping[type[ast.operator], Callable[..., Fact]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.FloorDiv: operator.floordiv,
        ast.Div: operator.truediv,
        ast.Mod: operator.mod,
    }
)
_COMPARE: Mapping[type[ast.cmpop], Callable[..., bool]] = MappingProxyType(
    {
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
        ast.In: lambda value, among: value in among,
        ast.NotIn: lambda value, among: value not in among,
    }
)
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Expression:
    """A condition or a number over facts: ``+ - * / // %``, comparisons, ``in``, ``and or not``, nothing else.

    Parameters
    ----------
    text : str
        As Python writes it.

    Raises
    ------
    ValueError
        It holds anything else, or a name that is no fact.

    Examples
    --------
    >>> Expression("heads % tp == 0").value({"heads": 96, "tp": 5})
    False
    >>> Expression("moe and not sp").value({"moe": None, "sp": True})
    False
    """

    text: str

    def __post_init__(self) -> None:
        """Refuse what is no expression."""
        _compiled(self.text)

    @property
    def names(self) -> frozenset[str]:
        """Facts that it speaks of."""
        return frozenset(node.id for node in ast.walk(_parsed(self.text)) if isinstance(node, ast.Name))

    def value(self, facts: Mapping[str, Fact]) -> Fact:
        """Evaluate; None where the facts that are known do not decide it.

        Parameters
        ----------
        facts : mapping of str to Fact
            Those that are missing are not known.

        Returns
        -------
        Fact
        """
        return _compiled(self.text)(facts)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise ValueError(f"an expression of more than {_LONGEST} letters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        raise ValueError(f"{text!r} is no expression") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if node.id not in FACTS:
                raise ValueError(f"{node.id!r} is no fact that rules know")
        elif not isinstance(node, _ALLOWED):
            raise ValueError(f"{type(node).__name__} is not allowed in {text!r}")
    return tree


_ALLOWED = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Constant, ast.Tuple, ast.Load,
    ast.And, ast.Or, ast.Not, ast.USub, *_BINARY, *_COMPARE,
)  # fmt: skip


_Meaning: TypeAlias = Callable[[Mapping[str, Fact]], Fact]


@lru_cache(maxsize=1024)
def _compiled(text: str) -> _Meaning:
    """Turn an expression into a function once: rules are applied to many layouts."""
    return _meaning(_parsed(text))


def _meaning(node: ast.expr) -> _Meaning:
    match node:
        case ast.Constant(value=value) if isinstance(value, int | float | str):
            return lambda _: value
        case ast.Name(id=name):
            return lambda facts: facts.get(name)
        case ast.UnaryOp(op=op, operand=inner):
            function = operator.not_ if isinstance(op, ast.Not) else operator.neg
            return _applied(function, _meaning(inner))
        case ast.BinOp(left=left, op=op, right=right):
            return _applied(_BINARY[type(op)], _meaning(left), _meaning(right))
        case ast.BoolOp(op=op, values=values):
            return _joined([_meaning(value) for value in values], decides=isinstance(op, ast.Or))
        case ast.Compare(left=left, ops=ops, comparators=others):
            pairs = zip([left, *others], ops, others, strict=False)
            compared = [_applied(_COMPARE[type(op)], _meaning(one), _among(other)) for one, op, other in pairs]
            return compared[0] if len(compared) == 1 else _joined(compared, decides=False)
    raise ValueError(f"{type(node).__name__} has no value")


def _among(node: ast.expr) -> Callable[[Mapping[str, Fact]], object]:
    """The right side of a comparison, which ``in`` lets be a list of values."""
    if not isinstance(node, ast.Tuple):
        return _meaning(node)
    items = [_meaning(item) for item in node.elts]
    return lambda facts: tuple(item(facts) for item in items)


def _joined(parts: Sequence[_Meaning], *, decides: bool) -> _Meaning:
    """Join truths so that one that decides does so whatever is not known (Kleene's logic)."""

    def joined(facts: Mapping[str, Fact]) -> bool | None:
        unknown = False
        for part in parts:
            value = part(facts)
            if value is None:
                unknown = True
            elif bool(value) is decides:
                return decides
        return None if unknown else not decides

    return joined


def _applied(function: Callable[..., Fact], *parts: Callable[[Mapping[str, Fact]], object]) -> _Meaning:
    def applied(facts: Mapping[str, Fact]) -> Fact:
        values = [part(facts) for part in parts]
        if None in values:
            return None
        try:
            return function(*values)
        except ZeroDivisionError:
            return None

    return applied


@dataclass(frozen=True, slots=True)
class Wording:
    """Text with expressions in braces, such as ``{layers} layers do not divide by pp {pp}``.

    Parameters
    ----------
    text : str

    Raises
    ------
    ValueError
        A brace holds no expression.
    """

    text: str

    def __post_init__(self) -> None:
        """Refuse braces that hold no expression."""
        for found in _BRACES.findall(self.text):
            Expression(found)

    def filled(self, facts: Mapping[str, Fact]) -> str:
        """Put values in the place of braces, ``?`` where one is not known."""

        def shown(match: re.Match[str]) -> str:
            value = Expression(match[1]).value(facts)
            return "?" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

        return _BRACES.sub(shown, self.text)


_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Parameters
    ----------
    name : str
    check : Expression
        What must hold.
    what : Wording
        What is wrong where it does not.
    where : str
        The key of a run file to look at.
    when : Expression or None
        Where the rule applies; None for always.
    right : Wording or None
        What would be right, where no legal values say it.
    choose : tuple of (str, Expression) or None
        A fact whose legal values are listed, and the largest that is tried.
    multiple : tuple of (str, Expression) or None
        A fact that should be a multiple, and of what.
    level : {"error", "warning"}
    source : str
        Where the rule stands.
    """

    name: str
    check: Expression
    what: Wording
    where: str
    when: Expression | None
    right: Wording | None
    choose: tuple[str, Expression] | None
    multiple: tuple[str, Expression] | None
    level: Literal["error", "warning"]
    source: str

    def holds(self, facts: Mapping[str, Fact]) -> bool | None:
        """Tell whether the rule holds, or does not apply; None where the facts do not decide it."""
        applies = True if self.when is None else self.when.value(facts)
        held = self.check.value(facts)
        if applies is None:
            return True if held else None
        return None if applies and held is None else not applies or bool(held)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of a framework.

    Parameters
    ----------
    name : str
    rules : tuple of Rule
    source : str
    called : tuple of str
        What tables of cases call the framework, in lower case.
    """

    name: str
    rules: tuple[Rule, ...]
    source: str
    called: tuple[str, ...] = ()
