"""``shardsim catalog``: what is known by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardsim.cli.lazy import did_you_mean
from shardsim.cli.options import data_option, json_option
from shardsim.errors import InputError, Problem

if TYPE_CHECKING:
    from shardsim.report.catalog import CatalogEntry, CatalogValue
    from shardsim.schema.catalog import CatalogKind

KINDS: dict[str, tuple[CatalogKind, ...]] = {
    "clusters": ("cluster",),
    "devices": ("device",),
    "models": ("model",),
    "frameworks": ("framework",),
    "profiles": ("kernel-profile", "fabric-profile"),
}


@click.command()
@click.argument("kind", required=False)
@json_option
@data_option
def catalog(kind: str | None, *, as_json: bool, data: tuple[Path, ...]) -> None:
    """List what is known by name: clusters, devices, models, frameworks, profiles.

    KIND is one of these; with it, sources are written out in full.
    """
    from shardsim.report.catalog import catalog_record, catalog_text
    from shardsim.report.console import show
    from shardsim.report.records import record_json

    kinds = [_kind(kind)] if kind is not None else list(KINDS)
    sections = {name: _section(name, data) for name in kinds}
    if as_json:
        click.echo(record_json(catalog_record(sections)), nl=False)
    else:
        show(catalog_text(sections))


def _kind(text: str) -> str:
    """Accept the singular as well."""
    for name in KINDS:
        if text in (name, name.removesuffix("s")):
            return name
    raise InputError(Problem(f"unknown kind {text!r}", right=did_you_mean(text, KINDS)))


def _section(name: str, data: Sequence[Path]) -> list[CatalogEntry]:
    """Read every entry of a kind; all problems of all files together."""
    from shardsim.report.catalog import catalog_entry
    from shardsim.schema.catalog import names

    entries: list[CatalogEntry] = []
    problems: list[Problem] = []
    for kind in KINDS[name]:
        load = _loader(kind)
        for entry in names(kind, data):
            try:
                entries.append(catalog_entry(entry, load(entry, data)))
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(problems)
    return entries


def _loader(kind: CatalogKind) -> Callable[[str, Sequence[Path]], CatalogValue]:
    from shardsim.schema import framework, hardware, kernels, model

    loaders: dict[CatalogKind, Callable[[str, Sequence[Path]], CatalogValue]] = {
        "cluster": hardware.load_cluster,
        "device": hardware.load_device,
        "model": model.load_model,
        "framework": framework.load_framework,
        "kernel-profile": kernels.load_kernel_profile,
        "fabric-profile": hardware.load_fabric_profile,
    }
    return loaders[kind]
