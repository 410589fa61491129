"""Whether layouts of one training job come in the right order, which buyers need more than the right level."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from scipy import stats

from shardsim.validate.table import RankedGroup, RankingSummary, ValidationRow

FEWEST = 5
"""Layouts from which on a group is ranked (-)."""

CLOSE = 0.03
"""How much longer than the fastest a layout may take and still be as good as the best (-)."""


def ranked_groups(rows: Sequence[ValidationRow]) -> tuple[RankedGroup, ...]:
    """Rank the layouts of every job of which a table has at least five.

    Parameters
    ----------
    rows : sequence of ValidationRow
        A job is one source, framework, model, cluster, GPU count, global batch, sequence, precision and condition of
        the machine. Several reports of one layout count once, by their median.

    Returns
    -------
    tuple of RankedGroup
        In the order of their first row.
    """
    jobs: dict[tuple[str, str, str], dict[str, list[ValidationRow]]] = {}
    for row in rows:
        if row.status == "ok" and row.job:
            jobs.setdefault((row.source, row.condition, row.job), {}).setdefault(row.layout, []).append(row)
    return tuple(_ranked(list(layouts.values())) for layouts in jobs.values() if len(layouts) >= FEWEST)


def _ranked(layouts: Sequence[Sequence[ValidationRow]]) -> RankedGroup:
    measured = [median(row.measured or 0.0 for row in reports) for reports in layouts]
    predicted = [reports[0].predicted or 0.0 for reports in layouts]
    # Of layouts predicted equally fast, the one measured slowest: a tie is not to our advantage.
    chosen = min(range(len(layouts)), key=lambda index: (predicted[index], -measured[index]))
    alike = min(predicted) == max(predicted) or min(measured) == max(measured)
    row = layouts[chosen][0]
    facts = row.facts
    where = "" if facts is None else f", {facts.features.gpus:,} x {facts.features.device}, seq {facts.features.seq:,}"
    return RankedGroup(
        name=f"{row.model or 'model'}{where}",
        source=row.source,
        condition=row.condition,
        layouts=len(layouts),
        chosen=row.id,
        loss=measured[chosen] / min(measured) - 1,
        spearman=0.0 if alike else float(stats.spearmanr(measured, predicted).statistic),
    )


def ranking_summaries(groups: Sequence[RankedGroup]) -> tuple[RankingSummary, ...]:
    """Summarise rankings: of all groups, without those on machines that something is wrong with, and by source.

    Parameters
    ----------
    groups : sequence of RankedGroup

    Returns
    -------
    tuple of RankingSummary
        Empty without groups.
    """
    if not groups:
        return ()
    found = [ranking_summary("all", groups)]
    sound = [group for group in groups if group.condition in ("", "healthy")]
    if sound and len(sound) < len(groups):
        found.append(ranking_summary("healthy machines", sound))
    sources = dict.fromkeys(group.source for group in groups)
    if len(sources) > 1:
        found += [ranking_summary(source, [group for group in groups if group.source == source]) for source in sources]
    return tuple(found)


def ranking_summary(name: str, groups: Sequence[RankedGroup]) -> RankingSummary:
    """Summarise rankings.

    Parameters
    ----------
    name : str
    groups : sequence of RankedGroup
        At least one.

    Returns
    -------
    RankingSummary
    """
    return RankingSummary(
        name=name,
        groups=len(groups),
        best_within=sum(group.loss <= CLOSE for group in groups) / len(groups),
        spearman_median=median(group.spearman for group in groups),
    )
