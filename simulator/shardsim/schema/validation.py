"""How measured tables name things: rules from other people's words to catalog names, as data."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from shardsim.schema.base import StrictModel, Text
from shardsim.schema.loader import check, load_yaml
from shardsim.schema.locate import data_roots
from shardsim.values.operators import MatrixLayout
from shardsim.values.training import NARROW_TYPE

FILE = "workloads/measured/names.yaml"
LAYOUTS: Mapping[str, MatrixLayout] = {
    "": "tn",
    **{layout: layout for layout in get_args(MatrixLayout)},
    "forward": "tn",
    "dgrad": "nn",
    "wgrad": "nt",
}
"""Words, in lower case, for how operands lie; without any, as a linear layer has them forward."""


class NameRule(StrictModel):
    """One rule from words in a cell to a name, or to a reason why such a row cannot be expressed.

    Parameters
    ----------
    words : tuple of str
        Beginnings of words, in lower case, that must all occur in the cell.
    interconnect : tuple of str
        Words that must all occur in the columns that describe the interconnect.
    until : int or None
        Last year of measurement for which the rule holds.
    name : str or None
        The catalog name.
    gpu : tuple of str
        Beginnings of words that must all occur in the ``gpu`` cell (frameworks only).
    notes : str
        Text that must stand in the row's notes, as it is (frameworks only).
    set : mapping
        Changes to the hardware, as a run file's ``set`` (clusters only).
    segments : bool
        Whether a job takes as many nodes in every NVLink domain, the most that divide its nodes (clusters only).
    layout : mapping
        Keys of the layout that follow (frameworks and sharding only).
    stages : {"even", "by_cost", "ends_as_layers"}
        How layers are dealt out to stages (frameworks only): evenly; by the cost of their products, LM head included;
        or evenly, with embedding and loss counted as layers where only so they divide.
    skip : str or None
        Why a row like this is skipped; either this or ``name``.
    note : str
        What was assumed.
    """

    words: tuple[Text, ...]
    interconnect: tuple[Text, ...] = ()
    until: int | None = None
    name: Text | None = None
    gpu: tuple[Text, ...] = ()
    notes: str = ""
    set: dict[str, str | int | float | bool] = Field(default_factory=dict)
    segments: bool = False
    layout: dict[str, str | int | bool] = Field(default_factory=dict)
    stages: Literal["even", "by_cost", "ends_as_layers"] = "even"
    skip: Text | None = None
    note: str = ""

    @model_validator(mode="after")
    def _one_outcome(self) -> Self:
        if (self.name is None) == (self.skip is None):
            raise ValueError("a rule has either a name or a skip")
        return self

    def matches(
        self, text: str, interconnect: str = "", year: int | None = None, notes: str = "", gpu: str = ""
    ) -> bool:
        """Tell whether the rule applies to a cell."""
        if self.notes not in notes or not _all_in(self.gpu, gpu):
            return False
        if self.until is not None and (year is None or year > self.until):
            return False
        return _all_in(self.words, text) and _all_in(self.interconnect, interconnect)


class ModelTraits(StrictModel):
    """What a class of architectures implies beyond the shape, or why it cannot be expressed.

    Parameters
    ----------
    activation, norm, position : str or None
        As in a model file.
    tied_embeddings, bias : bool or None
        As in a model file.
    skip : str or None
        Why a row like this is skipped; either this or the traits.
    note : str
        What was assumed.
    """

    activation: Literal["gelu", "swiglu"] | None = None
    norm: Literal["layernorm", "rmsnorm"] | None = None
    position: Literal["learned", "rope"] | None = None
    tied_embeddings: bool | None = None
    bias: bool | None = None
    skip: Text | None = None
    note: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        traits = (self.activation, self.norm, self.position, self.tied_embeddings, self.bias)
        if (self.skip is None) == any(trait is None for trait in traits):
            raise ValueError("either all of activation, norm, position, tied_embeddings and bias, or a skip")
        return self


class ModelRule(StrictModel):
    """What a model's name says of it that no column of a table does.

    Parameters
    ----------
    words : tuple of str
        Beginnings of words that must all occur in the ``model`` cell.
    model : mapping
        Keys of the model, as in a model file; those of ``moe`` and ``mla`` only where it has experts or latent
        attention. What the row says comes first.
    pp_layouts : mapping of int to str
        Megatron's layout string for so many virtual stages over which the layers do not divide.
    chunks : mapping of int to int
        Chunks of a stage, for so many stages, that the recipes of some frameworks have where a row states none.
    recipes : tuple of str
        Beginnings of words, one of which must occur in the ``framework`` cell for that.
    note : str
        What was assumed.
    """

    words: tuple[Text, ...]
    model: dict[str, int | bool | dict[str, int | bool]] = Field(default_factory=dict)
    pp_layouts: dict[int, Text] = Field(default_factory=dict)
    chunks: dict[int, int] = Field(default_factory=dict)
    recipes: tuple[Text, ...] = ()
    note: str = ""

    def matches(self, text: str) -> bool:
        """Tell whether the rule applies to a ``model`` cell."""
        return _all_in(self.words, text)

    def usual_chunks(self, pp: int, framework: str) -> int | None:
        """Chunks of each of so many stages in the recipes of a framework; None where they are not known."""
        return self.chunks.get(pp) if any(_all_in((word,), framework) for word in self.recipes) else None


class Phrase(StrictModel):
    """What a text in a row's notes says of its layout.

    Parameters
    ----------
    notes : str
        Text that must stand in the notes, as it is.
    layout : mapping
        Keys of the layout that follow.
    note : str
        What was assumed.
    """

    notes: Text
    layout: dict[str, str | int | float | bool | tuple[Text, ...]]
    note: str = ""


class ConditionRule(StrictModel):
    """What a row says of the machine that it was measured on, whatever its time.

    Parameters
    ----------
    name : str
        Such as ``sick``: the group that such rows are reported as.
    notes, interconnect : str
        Pattern in the notes, or in what the table says of links; one of them.
    below : float or None
        The pattern's first group is a number that has to be below this.
    note : str
        What it means.
    """

    name: Text
    notes: str = ""
    interconnect: str = ""
    below: float | None = None
    note: Text

    def tells(self, notes: str, interconnect: str) -> bool:
        """Whether the rule is about such a row."""
        found = re.search(self.notes, notes) if self.notes else re.search(self.interconnect, interconnect)
        return found is not None and (self.below is None or float(found[1]) < self.below)


class MemoryRule(StrictModel):
    """How a framework reports memory, and what its runs say nothing about.

    Parameters
    ----------
    words : tuple of str
        Beginnings of words that must all occur in the ``framework`` cell.
    columns : tuple of str
        Columns by which a table without a ``framework`` column is told to be of this framework.
    cells : mapping of str to str
        What a row of such a table must hold besides.
    framework : str or None
        Catalog name that such a table's runs take.
    arch_class : str or None
        Architecture class that such a table's rows take.
    unit : {"GB", "GiB"}
        What the columns that end in ``_gb`` count.
    stage : {"fullest", "first"}
        Pipeline stage whose memory is reported.
    note : str
        What was assumed.
    """

    words: tuple[Text, ...] = ()
    columns: tuple[Text, ...] = ()
    cells: dict[str, str] = Field(default_factory=dict)
    framework: Text | None = None
    arch_class: Text | None = None
    unit: Literal["GB", "GiB"] = "GB"
    stage: Literal["fullest", "first"] = "fullest"
    note: str = ""

    @property
    def bytes(self) -> float:
        """Of the unit [bytes]."""
        return 2.0**30 if self.unit == "GiB" else 1e9

    def matches(self, text: str) -> bool:
        """Tell whether the rule applies to a ``framework`` cell."""
        return bool(self.words) and _all_in(self.words, text)

    def tells(self, cells: Mapping[str, str]) -> bool:
        """Tell whether a row that names no framework is of this one."""
        return bool(self.columns) and set(self.columns) <= set(cells) and self.cells.items() <= cells.items()


class MeasuredNames(StrictModel):
    """All rules by which rows of a measured table become runs. The first rule that matches holds.

    Parameters
    ----------
    source : str
        What the rules rest on.
    clusters, precisions, frameworks, schedules, recompute, sharding : tuple of NameRule
        From the cells ``gpu``, ``precision``, ``framework`` with ``precision`` and ``arch_class``, ``schedule``,
        ``recompute`` and ``zero_stage``.
    collectives : tuple of NameRule
        Clusters, from the ``gpu`` cell of a table of collectives.
    devices : tuple of NameRule
        From the ``gpu`` cell of a table of matrix products.
    architectures : mapping of str to ModelTraits
        By the ``arch_class`` cell.
    models : tuple of ModelRule
        By the ``model`` cell.
    phrases : tuple of Phrase
        From the notes; all that stand there count, for each key the first.
    memory : tuple of MemoryRule
        How frameworks report memory.
    conditions : tuple of ConditionRule
        What rows say of their machines.
    """

    source: Text
    clusters: tuple[NameRule, ...] = ()
    collectives: tuple[NameRule, ...] = ()
    precisions: tuple[NameRule, ...] = ()
    frameworks: tuple[NameRule, ...] = ()
    schedules: tuple[NameRule, ...] = ()
    recompute: tuple[NameRule, ...] = ()
    sharding: tuple[NameRule, ...] = ()
    devices: tuple[NameRule, ...] = ()
    architectures: dict[str, ModelTraits] = Field(default_factory=dict)
    models: tuple[ModelRule, ...] = ()
    phrases: tuple[Phrase, ...] = ()
    memory: tuple[MemoryRule, ...] = ()
    conditions: tuple[ConditionRule, ...] = ()


def _tokens(text: str) -> tuple[str, ...]:
    """Split text into lower-case words; sizes such as ``80 GB``, ``80G`` and ``80 GiB`` become ``80gb``.

    Counts before a GPU and makers' systems are words of their own: ``8xH100``, ``DGXH100``.
    """
    sizes = re.sub(r"(\d)\s*gi?b?\b", r"\1gb", text.lower())
    parted = re.sub(r"\b(\d+x|dgx|hgx)(?=[a-z]+\d)", r"\1 ", sizes)
    return tuple(re.findall(r"[a-z0-9]+", parted))


def _all_in(words: Iterable[str], text: str) -> bool:
    tokens = _tokens(text)
    return all(any(token.startswith(word) for token in tokens) for word in words)


def first_match(
    rules: Iterable[NameRule],
    text: str,
    interconnect: str = "",
    year: int | None = None,
    notes: str = "",
    gpu: str = "",
) -> NameRule | None:
    """Find the first rule that applies to a cell.

    Parameters
    ----------
    rules : iterable of NameRule
    text : str
        The cell.
    interconnect : str
        The cells that describe the interconnect.
    year : int or None
        Year of measurement.
    notes : str
        The row's notes.
    gpu : str
        The row's ``gpu`` cell.

    Returns
    -------
    NameRule or None

    Examples
    --------
    >>> rules = [NameRule(words=("gb200",), name="gb200-nvl72"), NameRule(words=("b200",), name="dgx-b200")]
    >>> first_match(rules, "NVIDIA GB200").name
    'gb200-nvl72'
    """
    return next((rule for rule in rules if rule.matches(text, interconnect, year, notes, gpu)), None)


def measured_names(data: Sequence[Path] = ()) -> MeasuredNames:
    """Read the rules; a user's own come before the bundled ones.

    Parameters
    ----------
    data : sequence of Path
        A user's own data folders.

    Returns
    -------
    MeasuredNames

    Raises
    ------
    InputError
        A rules file is not valid: every problem.
    """
    files = [root / FILE for root in data_roots(data)]
    found = [check(load_yaml(file), MeasuredNames) for file in files if file.is_file()]
    architectures: dict[str, ModelTraits] = {}
    for names in reversed(found):
        architectures |= names.architectures
    return MeasuredNames(
        source="; ".join(names.source for names in found) or "no rules file",
        clusters=tuple(rule for names in found for rule in names.clusters),
        collectives=tuple(rule for names in found for rule in names.collectives),
        precisions=tuple(rule for names in found for rule in names.precisions),
        frameworks=tuple(rule for names in found for rule in names.frameworks),
        schedules=tuple(rule for names in found for rule in names.schedules),
        recompute=tuple(rule for names in found for rule in names.recompute),
        sharding=tuple(rule for names in found for rule in names.sharding),
        devices=tuple(rule for names in found for rule in names.devices),
        architectures=architectures,
        models=tuple(rule for names in found for rule in names.models),
        phrases=tuple(phrase for names in found for phrase in names.phrases),
        memory=tuple(rule for names in found for rule in names.memory),
        conditions=tuple(rule for names in found for rule in names.conditions),
    )


def data_type(text: str, known: Collection[str], rules: MeasuredNames) -> str:
    """Give the name under which a profile has a data type; the text itself where no rule knows it.

    Parameters
    ----------
    text : str
        As a table has it, such as ``torch.bfloat16``.
    known : collection of str
        Names that profiles use; these come first.
    rules : MeasuredNames

    Returns
    -------
    str
    """
    folded = text.strip().casefold()
    rule = None if folded in known else first_match(rules.precisions, folded)
    name = folded if rule is None or rule.name is None else rule.name
    return next((narrow for precision, narrow in NARROW_TYPE.items() if precision == name), name)
