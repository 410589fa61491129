"""Prices and runs one layer under every design: layers.csv; its collectives: collectives.csv, hiding.csv."""

from __future__ import annotations

from collections.abc import Iterator

from common import CLUSTERS, DEGREES, DESIGNS, MODELS, SHOWN, Case, Design, case, executed, tasks_of, undivided, write

from shardsim.values.program import PassKind, Task


def wire(task: Task) -> float:
    """Bytes that a task sends over the most loaded link, per direction."""
    return sum(float(size) for size in task.transfer.wire.values())


def measured(one: Case, design: Design, kind: PassKind) -> dict[str, float]:
    """Bytes and seconds of one pass through a layer."""
    tasks = tasks_of(one, design, kind)
    moved = [task for task in tasks if task.transfer is not None]
    work = dict.fromkeys(("gemm", "attention", "memory-bound"), 0.0)
    for task in tasks:
        if task.transfer is None:
            work[task.category] += float(task.seconds)
    divided = 0.0
    if "tp_overlap" in design.flags:
        whole = tasks_of(one, undivided(design), kind)
        divided = sum(work.values()) - sum(float(task.seconds) for task in whole if task.transfer is None)
    execution = executed(one, {kind: tasks})
    spent = execution.stages[0].seconds
    return {
        "wire_bytes": sum(wire(task) for task in moved),
        "collectives_s": sum(float(task.seconds) for task in moved),
        **{f"{name.replace('-', '_')}_s": seconds for name, seconds in work.items()},
        "divided_s": divided,
        "exposed_s": float(spent.get("tp", 0.0)),
        "interference_s": float(spent.get("interference", 0.0)),
        "layer_s": float(execution.iteration_s),
    }


def rows() -> Iterator[dict[str, object]]:
    """One row for every model, cluster, TP, design and pass."""
    for model in MODELS:
        for cluster in CLUSTERS:
            for tp in DEGREES:
                one = case(model, cluster, tp)
                for name, design in DESIGNS.items():
                    for kind in ("F", "B"):
                        keys = {"model": model, "cluster": cluster, "tp": tp, "design": name, "pass": kind}
                        yield {**keys, **measured(one, design, kind)}


def each_collective() -> Iterator[dict[str, object]]:
    """One row for every collective of a layer and design: its steps together, and how long nothing ran beside it."""
    one = case(*SHOWN)
    for name, design in DESIGNS.items():
        for kind in ("F", "B"):
            tasks = tasks_of(one, design, kind)
            ways = {task.name: task.transfer.algorithm for task in tasks if task.transfer is not None}
            timeline = executed(one, {kind: tasks}, timeline=True).timeline
            spans = list(zip(timeline.label, timeline.start, timeline.finish, strict=True))
            busy = [(a, b) for label, a, b in spans if timeline.labels[label][1] == "compute"]
            found: dict[str, dict[str, float]] = {}
            for label, start, finish in sorted(spans, key=lambda span: span[1]):
                what, stream, _ = timeline.labels[label]
                if stream == "tp":
                    beside = sum(max(min(finish, b) - max(start, a), 0.0) for a, b in busy)
                    own = found.setdefault(what, {"steps": 0, "wire_bytes": 0.0, "seconds": 0.0, "alone_s": 0.0})
                    own["steps"] += 1
                    own["seconds"] += finish - start
                    own["alone_s"] += max(finish - start - beside, 0.0)
            for what, own in found.items():
                own["wire_bytes"] = sum(wire(task) for task in tasks if task.name == what and task.transfer is not None)
                yield {"design": name, "pass": kind, "name": what, "algorithm": ways[what], **own}


def beside() -> Iterator[dict[str, object]]:
    """Time of each collective of a forward pass over that of the product beside it."""
    products = {
        "attention gather": "qkv",
        "attention scatter": "attention output",
        "mlp gather": "mlp up",
        "mlp scatter": "mlp down",
    }
    for model in MODELS:
        for cluster in CLUSTERS:
            for tp in DEGREES:
                tasks = tasks_of(case(model, cluster, tp), DESIGNS["sp-behind"], "F")
                seconds = {task.name: float(task.seconds) for task in tasks}
                keys = {"model": model, "cluster": cluster, "tp": tp}
                yield {**keys, **{moved: seconds[moved] / seconds[product] for moved, product in products.items()}}


if __name__ == "__main__":
    write("layers.csv", list(rows()))
    write("collectives.csv", list(each_collective()))
    write("hiding.csv", list(beside()))
