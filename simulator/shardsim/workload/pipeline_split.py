"""How a user says which stage holds which layers: counts, Megatron's layout string, ends counted as layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from shardsim.errors import InputError, Problem

_LETTERS = {"E": "embedding", "t": "transformer layer", "L": "loss", "m": "multi-token prediction"}
_GROUP = re.compile(r"\(([^()]+)\)\*(\d+)")
_SINGLE = re.compile(r"([A-Za-z|])\*(\d+)")
_LONGEST = 100_000
"""Letters of a layout string written out (-)."""
_SHOWN = 6
_MOST_TRIED = 1024
"""Largest value that is tried where legal ones are looked for (-)."""


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """What was asked for about the layers of stages; None for what was left out.

    Parameters
    ----------
    layers : int
        Of the model (-).
    pp : int
        Pipeline ranks (-).
    vpp : int or None
        Chunks a rank holds (-).
    schedule_chunks : int
        Chunks that the schedule holds by its nature (-); 0 for any number.
    schedule : str
        What messages call the schedule.
    copies : int
        Copies of the model that the ranks of a pipeline hold (-).
    folded : bool
        Whether the first stage holds the last layers too.
    stage_layers : tuple of int or None
        Layers of each virtual stage, first layers first (-).
    first_layers, last_layers : int or None
        Layers of the first and of the last stage, over all their chunks (-).
    embedding_as_layer, loss_as_layer : bool
        Whether the ends count as a layer where layers are split evenly.
    pp_layout : str or None
        Megatron's layout string.
    virtual_stage_layers : int or None
        Layers of every chunk (-).
    mtp : int
        Modules of multi-token prediction that the model has (-).
    """

    layers: int
    pp: int
    vpp: int | None = None
    schedule_chunks: int = 0
    schedule: str = "the schedule"
    copies: int = 1
    folded: bool = False
    stage_layers: tuple[int, ...] | None = None
    first_layers: int | None = None
    last_layers: int | None = None
    embedding_as_layer: bool = False
    loss_as_layer: bool = False
    pp_layout: str | None = None
    virtual_stage_layers: int | None = None
    mtp: int = 0

    @property
    def ends(self) -> bool:
        """Whether layers of the first or last stage are given."""
        return self.first_layers is not None or self.last_layers is not None

    @property
    def ends_as_layers(self) -> int:
        """Layers that the ends count as (-)."""
        return self.embedding_as_layer + self.loss_as_layer


def stage_split(asked: SplitRequest) -> tuple[int, tuple[int, ...], tuple[Problem, ...]]:
    """Find the chunks of a rank and the layers of each virtual stage.

    Parameters
    ----------
    asked : SplitRequest

    Returns
    -------
    vpp : int
        Chunks a rank holds (-).
    split : tuple of int
        Layers of each virtual stage of a chain, first layers first (-); empty for an even split, and after a problem.
    problems : tuple of Problem
        Every problem, with what would be legal.

    Notes
    -----
    Rules of github NVIDIA/Megatron-LM, megatron/core/transformer/transformer_config.py and
    megatron/training/arguments.py.

    Examples
    --------
    >>> stage_split(SplitRequest(layers=30, pp=4, first_layers=7, last_layers=7))
    (1, (7, 8, 8, 7), ())
    >>> stage_split(SplitRequest(layers=8, pp=2, pp_layout="Et|tt|(tt|)*1tttL"))
    (2, (1, 2, 2, 3), ())
    """
    problems = list(_contradictions(asked))
    listed, found = _listed(asked)
    problems += found
    vpp, found = _chunks(asked, listed)
    problems += found
    if problems:
        return vpp, (), tuple(problems)
    if listed is not None:
        split, found = listed, tuple(_listed_problems(asked, listed))
    elif asked.ends:
        split, found = _ends_split(asked, vpp // asked.copies)
    elif asked.ends_as_layers:
        split, found = _counted_split(asked, vpp // asked.copies)
    else:
        split, found = (), ()
    return vpp, () if found else split, tuple(found)


def spread(layers: int, stages: int) -> tuple[int, ...]:
    """Split layers as evenly as they go, the first stages holding the remainder.

    >>> spread(30, 4)
    (8, 8, 7, 7)
    """
    each, rest = divmod(layers, stages)
    return tuple(each + (stage < rest) for stage in range(stages))


def layout_sections(text: str) -> tuple[str, ...]:
    """Write Megatron's layout string out, virtual stage by virtual stage.

    Parameters
    ----------
    text : str
        Stages apart by ``|``; ``E`` embedding, ``t`` transformer layer, ``m`` module of multi-token prediction,
        ``L`` loss; ``x*3`` and ``(xy|)*3`` repeat; commas are for the eye.

    Returns
    -------
    tuple of str

    Raises
    ------
    InputError
        Other letters, parentheses without a pair, or a string without end.

    Notes
    -----
    github NVIDIA/Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py.

    Examples
    --------
    >>> layout_sections("Et*2|(tt|)*2,L")
    ('Ett', 'tt', 'tt', 'L')
    """
    flat = re.sub(r"[,\s]", "", text)
    for pattern in (_GROUP, _SINGLE):
        if sum(len(part) * int(times[:7]) for part, times in pattern.findall(flat)) > _LONGEST:
            raise InputError(Problem(f"more than {_LONGEST:,} letters once written out", _LAYOUT, "fewer repetitions"))
        flat = pattern.sub(lambda match: match[1] * int(match[2]), flat)
    wrong = sorted(set(flat) - set(_LETTERS) - {"|"})
    if wrong:
        known = "E, t, m, L, |, commas, and repetitions such as t*3 or (tt|)*29"
        raise InputError(Problem(f"{text!r} holds {' '.join(wrong)}, which says nothing", _LAYOUT, known))
    return tuple(flat.split("|"))


_LAYOUT = "layout.pp_layout"


def _contradictions(asked: SplitRequest) -> Iterator[Problem]:
    ways = [
        ("stage_layers", asked.stage_layers is not None),
        ("pp_layout", asked.pp_layout is not None),
        ("first_layers and last_layers", asked.ends),
        ("embedding_as_layer and loss_as_layer", asked.ends_as_layers > 0),
    ]
    given = [name for name, there in ways if there]
    if len(given) > 1:
        yield Problem(f"layers of stages are given in {len(given)} ways: {'; '.join(given)}", "layout", "keep one")
    if asked.virtual_stage_layers is not None and given[:1] and given != ["embedding_as_layer and loss_as_layer"]:
        what = f"virtual_stage_layers says that all chunks are alike, {given[0]} that they are not"
        yield Problem(what, "layout.virtual_stage_layers", "give vpp instead")
    if asked.folded and asked.ends:
        what = "the first stage of this schedule holds the first and the last layers, so that counts of ends say little"
        yield Problem(what, "layout.first_layers", "stage_layers; or embedding_as_layer and loss_as_layer")


def _listed(asked: SplitRequest) -> tuple[tuple[int, ...] | None, Sequence[Problem]]:
    """Layers of each virtual stage, where a list or a layout string gives them."""
    if asked.pp_layout is None:
        return asked.stage_layers, ()
    try:
        sections = layout_sections(asked.pp_layout)
    except InputError as error:
        return None, error.problems
    flat = "".join(sections)
    problems = []
    for letter, place, at_place in (
        ("E", "first", sections[0].startswith("E")),
        ("L", "last", sections[-1].endswith("L")),
    ):
        if flat.count(letter) != 1 or not at_place:
            what = f"the {_LETTERS[letter]} ({letter}) stands {flat.count(letter)} times, or not {place}"
            problems.append(Problem(what, _LAYOUT, f"one {letter}, {place} in the {place} stage"))
    return tuple(section.count("t") for section in sections), [*problems, *_prediction_problems(asked, sections)]


def _prediction_problems(asked: SplitRequest, sections: Sequence[str]) -> Iterator[Problem]:
    """Megatron's: behind all layers, in the last chunk of one rank, which is not the first rank of several."""
    flat = "".join(sections)
    if not flat.count("m"):
        return
    if flat.count("m") != asked.mtp:
        what = f"m stands {flat.count('m')} times, the model predicts {asked.mtp} further tokens"
        right = f"{asked.mtp} times, or leave it out" if asked.mtp else "leave it out, or set mtp of the model"
        yield Problem(what, _LAYOUT, right)
    at = [index for index, section in enumerate(sections) if "m" in section]
    if "t" in flat[flat.index("m") :] or len(at) > 1:
        yield Problem("m stands before a t, or in several stages", _LAYOUT, "in one stage, behind the last t")
    elif at[0] < len(sections) - asked.pp + (asked.pp > 1):
        what = f"m stands in virtual stage {at[0]}, counted from 0"
        yield Problem(what, _LAYOUT, "in the last chunk of a rank other than the first")


def prediction_stage(pp_layout: str | None) -> int | None:
    """Find the virtual stage that holds the modules of multi-token prediction.

    Parameters
    ----------
    pp_layout : str or None
        Megatron's layout string, or None.

    Returns
    -------
    int or None
        Counted from 0 (-); None where the string does not say, or cannot be read (:func:`stage_split` says why).

    Examples
    --------
    >>> prediction_stage("Et|tt|m|L")
    2
    """
    try:
        sections = () if pp_layout is None else layout_sections(pp_layout)
    except InputError:
        return None
    return next((index for index, section in enumerate(sections) if "m" in section), None)


def _chunks(asked: SplitRequest, listed: tuple[int, ...] | None) -> tuple[int, Sequence[Problem]]:
    """Chunks a rank holds, from all that says so."""
    if asked.schedule_chunks:
        return asked.schedule_chunks, tuple(_against_the_schedule(asked, listed))
    said: list[tuple[str, int]] = []
    if asked.vpp is not None:
        said.append(("vpp", asked.vpp))
    if listed is not None:
        stages = len(listed)
        if stages % asked.pp:
            what = f"{stages} virtual stages do not divide over pp {asked.pp}"
            right = f"{_near(stages, asked.pp)} of them, or pp {_either(_divisors(stages))}"
            return 1, (Problem(what, _where(asked), right),)
        said.append((_where(asked).removeprefix("layout."), stages // asked.pp))
    if asked.virtual_stage_layers is not None:
        per_chunk, total = asked.virtual_stage_layers, asked.layers + asked.ends_as_layers
        stage, rest = divmod(total, asked.pp)
        if rest or stage % per_chunk:
            of_stage = f"{total} / pp {asked.pp}" if rest else f"{stage}"
            what = f"{of_stage} layers of a stage do not divide into chunks of {per_chunk}"
            right = f"pp {_either(_divisors(total))}" if rest else _either(_divisors(stage))
            return 1, (Problem(what, "layout.pp" if rest else "layout.virtual_stage_layers", right),)
        said.append(("virtual_stage_layers", stage // per_chunk))
    if len({chunks for _, chunks in said}) > 1:
        what = ", ".join(f"{who} means {chunks}" for who, chunks in said)
        return said[0][1], (Problem(f"chunks of a rank contradict each other: {what}", "layout.vpp", "keep one"),)
    return (said[0][1] if said else 1), ()


def _against_the_schedule(asked: SplitRequest, listed: tuple[int, ...] | None) -> Iterator[Problem]:
    """What means other chunks of a rank than the schedule holds by its nature."""
    held = asked.schedule_chunks
    holds = f"{asked.schedule} holds {held} chunks a stage"
    stages, rest = divmod(held * asked.pp, asked.copies)
    if rest:
        return  # a schedule of one's own for another pp, which is said where it is read
    copies = f" for {asked.copies} copies of the model" if asked.copies > 1 else ""
    on_ranks = f"{holds}{copies}: {stages} virtual stages{' of each' if copies else ''} on pp {asked.pp}"
    if asked.vpp not in (None, held):
        yield Problem(f"{holds}, not {asked.vpp}", "layout.vpp", f"{held}, or leave it out")
    if listed is not None and len(listed) != stages:
        yield Problem(f"{on_ranks}, not {len(listed)}", _where(asked), f"{stages} of them")
    per_chunk, total = asked.virtual_stage_layers, asked.layers + asked.ends_as_layers
    if per_chunk is not None and per_chunk * stages != total:
        what = f"{on_ranks}, and {per_chunk} layers in each do not make {total}"
        right = "leave it out" if total % stages else str(total // stages)
        yield Problem(what, "layout.virtual_stage_layers", right)


def _where(asked: SplitRequest) -> str:
    return "layout.stage_layers" if asked.pp_layout is None else _LAYOUT


def _listed_problems(asked: SplitRequest, split: Sequence[int]) -> Iterator[Problem]:
    if sum(split) != asked.layers:
        what = f"the stages hold {sum(split)} layers, the model has {asked.layers}"
        yield Problem(what, _where(asked), f"{asked.layers} in all")


def _ends_split(asked: SplitRequest, chunks: int) -> tuple[tuple[int, ...], Sequence[Problem]]:
    first, last = asked.first_layers, asked.last_layers
    middle = asked.pp - (first is not None) - (last is not None)
    rest = asked.layers - (first or 0) - (last or 0)
    if middle < 0:
        what = f"layers of the first and of the last stage, of {asked.pp}"
        return (), (Problem(what, "layout.pp", "2 or more, or only one of them"),)
    problems = [
        Problem(f"{count} layers do not divide into {chunks} chunks", f"layout.{name}", _near(count, chunks))
        for name, count in (("first_layers", first), ("last_layers", last))
        if count is not None and count % chunks
    ]
    if middle == 0 and rest:
        held = "both stages hold" if asked.pp > 1 else "the only stage holds"
        what = f"{held} {asked.layers - rest} of the model's {asked.layers} layers"
        name = "first_layers" if first is not None else "last_layers"
        problems.append(Problem(what, f"layout.{name}", f"counts that add up to {asked.layers}"))
    elif middle and (rest <= 0 or rest % (middle * chunks)):
        name, given, other = ("first_layers", first, last) if first is not None else ("last_layers", last, None)
        pool = asked.layers - (other or 0)
        legal = [
            count
            for count in range(chunks, min(pool, _MOST_TRIED) + 1, chunks)
            if count < pool and (pool - count) % (middle * chunks) == 0
        ]
        others = f"{middle} stages between them" if asked.pp - middle > 1 else f"other {middle} stages"
        into = others + (f" of {chunks} chunks" if chunks > 1 else "")
        what = f"{max(rest, 0)} layers remain and do not divide over the {into}"
        if rest <= 0:
            what = f"no layers remain for the {into}"
        near = sorted(sorted(legal, key=lambda count: abs(count - (given or 0)))[:_SHOWN])
        problems.append(Problem(what, f"layout.{name}", _either(near) if near else "other counts, or fewer stages"))
    if problems:
        return (), problems
    counts = [rest // middle if middle else 0] * asked.pp
    if first is not None:
        counts[0] = first
    if last is not None:
        counts[-1] = last
    return tuple(count // chunks for _ in range(chunks) for count in counts), ()


def _counted_split(asked: SplitRequest, chunks: int) -> tuple[tuple[int, ...], Sequence[Problem]]:
    stages, total = asked.pp * chunks, asked.layers + asked.ends_as_layers
    each, rest = divmod(total, stages)
    if rest:
        ends = [name for name, on in (("embedding", asked.embedding_as_layer), ("loss", asked.loss_as_layer)) if on]
        of = f"{stages} stages" if chunks == 1 else f"pp {asked.pp} x {chunks} chunks = {stages} virtual stages"
        what = f"{asked.layers} layers and the {' and '.join(ends)} make {total}, not divisible by {of}"
        least = 1 if chunks == 1 or asked.schedule_chunks else 2  # interleaving takes two ranks
        legal = [p for p in _divisors(total) if p >= least and p * chunks <= asked.layers and total % (p * chunks) == 0]
        return (), (Problem(what, "layout.pp", _either(legal) if legal else "no pp fits: give stage_layers instead"),)
    counts = [each] * stages
    counts[0] -= asked.embedding_as_layer
    counts[-1] -= asked.loss_as_layer
    return tuple(counts), ()


def _divisors(n: int) -> Iterator[int]:
    return (d for d in range(1, min(n, _MOST_TRIED) + 1) if n % d == 0)


def _near(value: int, step: int) -> str:
    low = value // step * step
    return f"{low} or {low + step}" if low else str(step)


def _either(values: Iterable[int]) -> str:
    shown = [str(value) for value in values]
    return shown[0] if len(shown) == 1 else "one of " + ", ".join(shown)
