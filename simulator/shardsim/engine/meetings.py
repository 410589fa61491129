"""What lanes do together: messages, meetings, and transfers on shared links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

from simpy import Environment, Event

from shardsim.engine.later import Later
from shardsim.engine.network import Load, Network
from shardsim.engine.steps import BlockPlan, Meeting, PassKey, Queued, Sync
from shardsim.program.contention import LINK_CLASSES, link_classes
from shardsim.values.lanes import DIRECTIONS, Direction, Folding
from shardsim.values.program import Program
from shardsim.values.results import WaitedAt
from shardsim.values.transfer import Transfer


class Shared(NamedTuple):
    """What a task meets outside its lane.

    Parameters
    ----------
    label : str
        Name of the meeting, or axis and stream of the group.
    members : tuple of int
        Lanes that take part.
    load : Load or None
        What its transfer does to links that others use as well; None for nothing.
    latency, moving : float
        Time before bytes move, and that they take when alone [s].
    at : {"group", "meeting"}
        Whether lanes meet in a group of their axis, or stages by name.
    """

    label: str
    members: tuple[int, ...]
    load: Load | None
    latency: float
    moving: float
    at: WaitedAt = "group"


class Meetings:
    """Everything that lies between lanes.

    Parameters
    ----------
    env : Environment
    folding : Folding
    programs : sequence of Program
        By variant.
    network : Network or None
        None where nothing contends.
    """

    def __init__(
        self, env: Environment, folding: Folding, programs: tuple[Program, ...], network: Network | None
    ) -> None:
        self.env = env
        self.folding = folding
        self.programs = programs
        self.network = network
        self.waited: dict[tuple[int, int, WaitedAt], float] = {}
        self.events: dict[tuple[int, PassKey], Later] = {}
        self.sent: dict[tuple[int, PassKey], tuple[int, float]] = {}
        self.lane_at = {(lane.column, lane.stage): index for index, lane in enumerate(folding.lanes)}
        self.receiver = {
            (*place, kind): other[0]
            for chain in programs[0].schedule.chains
            for before, after in pairwise(chain)
            for place, other, kind in ((before, after, "F"), (after, before, "B"))
        }
        self.loads: dict[tuple[int, int, str, int], tuple[Load | None, float, float]] = {}
        self.group_loads: dict[tuple[int, tuple[int, ...]], Load | None] = {}
        self.used: dict[int, frozenset[str]] = {}
        self.attended: dict[tuple[int, str], int] = {}
        self.present: dict[tuple[Meeting, tuple[int, ...]], tuple[Later, list[tuple[float, int]]]] = {}
        self.gathered: dict[
            tuple[Meeting, tuple[int, ...]], list[tuple[int, float, Callable[[], None], Callable[[], None]]]
        ] = {}

    # ---- what is shared -------------------------------------------------------------------------------------------

    def shared(self, index: int, step: Queued | Sync) -> Shared | None:
        """Tell what a task of a lane meets.

        Parameters
        ----------
        index : int
            Lane.
        step : Queued or Sync

        Returns
        -------
        Shared or None
            None where it meets nobody.
        """
        task = step.task
        if task is None:
            return None
        axis = task.moves[0] if task.moves is not None else ""
        members: tuple[int, ...] = ()
        label = task.rendezvous or f"{axis} on {task.stream}"
        groups = self.folding.groups.get(task.rendezvous or axis)
        if groups is not None:
            members = groups[index]
        elif task.rendezvous:
            column = self.folding.lanes[index].column
            members = tuple(
                self.lane_at[column, stage] for stage in self.programs[0].rendezvous_members[task.rendezvous]
            )
        if task.rendezvous and not members:
            members = (index,)
        load = None
        latency, moving = 0.0, float(task.seconds)
        if task.transfer is not None and task.seconds > 0:
            latency = float(task.transfer.latency)
            moving = moving - latency
            load = self._group_load(task.transfer, members or (index,))
        if load is None and len(members) <= 1 and not task.rendezvous:
            return None
        return Shared(label, members, load, latency, moving, "meeting" if task.rendezvous else "group")

    def meets_itself_only(self, index: int, block: BlockPlan) -> bool:
        """Tell whether nothing in a block meets another lane, a message, or another stream of the block.

        Parameters
        ----------
        index : int
            Lane.
        block : BlockPlan

        Returns
        -------
        bool
        """
        sharing, stage = self.folding.sharing, self.folding.lanes[index].stage
        steps = [step for step in block.steps if isinstance(step, Queued | Sync)]
        queued = {step.stream for step in steps if isinstance(step, Queued)}
        sources: dict[str, set[str]] = {}
        for step in steps:
            shared = self.shared(index, step)
            if shared is None:
                continue
            if len(shared.members) > 1 or step.task is None or step.task.rendezvous or step.task.transfer is None:
                return False
            for link in sharing.contested.get(stage, ()):
                if link in self._used(step.task.transfer):
                    stream = step.task.stream if step.task.stream in queued else ""
                    sources.setdefault(link, set()).add(stream)
        return not sharing.crossed & set(sources) and all(len(names) == 1 for names in sources.values())

    def _group_load(self, transfer: Transfer, members: tuple[int, ...]) -> Load | None:
        """What a collective does to its lanes' links, worked out once: many tasks have one transfer."""
        key = id(transfer), members
        if key not in self.group_loads:
            self.group_loads[key] = self._load(transfer, members)
        return self.group_loads[key]

    def _load(
        self, transfer: Transfer, members: tuple[int, ...], *, ends: Mapping[int, tuple[Direction, ...]] | None = None
    ) -> Load | None:
        """What a transfer does to the contested links of its lanes; None where it meets nothing."""
        if self.network is None:
            return None
        used, contested = self._used(transfer), self.folding.sharing.contested
        if all(used.isdisjoint(contested.get(self.folding.lanes[index].stage, ())) for index in members):
            return None
        shares: dict[int, float] = {}
        slowest = 1.0
        for index in members:
            lane = self.folding.lanes[index]
            for link in LINK_CLASSES:
                if link not in used or link not in contested.get(lane.stage, ()):
                    continue
                share = float(transfer.share(link))
                for direction in DIRECTIONS if ends is None else ends[index]:
                    for number, part in lane.links.get((link, direction), ()):
                        left = self.folding.links[number].left
                        if left < 1.0:  # a link at half its bandwidth takes twice as long for what it needs
                            slowest = min(slowest, left / max(float(transfer.need(link)), left))
                        shares[number] = shares.get(number, 0.0) + share * part
        if not shares:
            return None
        nic, bandwidth = float(transfer.share("nic")), self.folding.bandwidth
        weight = nic * bandwidth["nic"] if nic > 0.0 else float(transfer.share("nvlink")) * bandwidth["nvlink"]
        limit = min(1.0, self.folding.flow_share / nic, slowest) if nic > 0.0 else min(1.0, slowest)
        return Load(tuple(sorted(shares.items())), weight, limit)

    def _used(self, transfer: Transfer) -> frozenset[str]:
        """Classes of links that a transfer uses, worked out once."""
        if id(transfer) not in self.used:
            self.used[id(transfer)] = link_classes(transfer)
        return self.used[id(transfer)]

    # ---- messages -------------------------------------------------------------------------------------------------

    def message(self, column: int, key: PassKey) -> Later:
        """Return the event of a message's arrival, for whichever end asks first."""
        found = self.events.get((column, key))
        if found is None:
            found = self.events[column, key] = Later(self.env)
        return found

    def send(self, index: int, column: int, key: PassKey, seconds: float) -> None:
        """Send a message, which holds up nobody."""
        event = self.message(column, key)
        if self.network is None:
            event.happen(seconds)
            return
        stage, kind, _, chunk = key
        variant = self.folding.lanes[index].variant
        place = (index, stage, kind, chunk)
        if place not in self.loads:
            transfer = self.programs[variant].messages[stage, kind, chunk]
            receiver = self.lane_at[column, self.receiver[stage, chunk, kind]]
            load = self._load(transfer, (index, receiver), ends={index: ("out",), receiver: ("in",)})
            latency = float(transfer.latency)
            self.loads[place] = load, latency, float(transfer.seconds) - latency
        load, latency, moving = self.loads[place]
        self.sent[column, key] = index, self.env.now
        if load is None:
            event.happen(seconds)
        else:
            self.network.start(load, latency, moving, event.happen)

    def received(self, index: int, column: int, key: PassKey, since: float) -> float | None:
        """Drop a message that has been received, and tell how long it was under way [s], where that is not known."""
        del self.events[column, key]
        if self.network is None:
            return None
        sender, sent = self.sent.pop((column, key))
        now = self.env.now
        if now > since:
            self._blame(index, sender, "message", now - since)
        return now - sent

    # ---- meetings -------------------------------------------------------------------------------------------------

    def next_of(self, index: int, shared: Shared) -> Meeting:
        """Name the next meeting of a lane with that label."""
        return shared.label, self.attended.get((index, shared.label), 0)

    def arrive(self, index: int, shared: Shared, gap: float) -> Event:
        """Count a lane in that arrives at a meeting after a gap; it takes place when the last of its members does."""
        key = (self._turn(index, shared), shared.members)
        event, here = self.present.setdefault(key, (Later(self.env), []))
        here.append((self.env.now + gap, index))
        if len(here) == len(shared.members):
            del self.present[key]
            latest, late = max(here)
            for arrived, waiting in here:
                if latest > arrived:
                    self._blame(waiting, late, shared.at, latest - arrived)
            event.happen(latest - self.env.now)
        return event

    def attend(self, index: int, shared: Shared, begin: Callable[[], None], done: Callable[[], None]) -> None:
        """Take part in a task that begins once all lanes of its group have come, and ends for all of them at once."""
        if len(shared.members) <= 1:
            begin()
            self._go(shared, (done,))
            return
        key = (self._turn(index, shared), shared.members)
        here = self.gathered.setdefault(key, [])
        here.append((index, self.env.now, begin, done))
        if len(here) == len(shared.members):
            del self.gathered[key]
            for waiting, since, start, _ in here:
                start()
                if self.env.now > since:
                    self._blame(waiting, index, shared.at, self.env.now - since)
            self._go(shared, tuple(one[3] for one in here))

    def _turn(self, index: int, shared: Shared) -> Meeting:
        meeting = self.next_of(index, shared)
        self.attended[index, shared.label] = meeting[1] + 1
        return meeting

    def _go(self, shared: Shared, done: tuple[Callable[[], None], ...]) -> None:
        def ended() -> None:
            for each in done:
                each()

        if shared.load is not None and self.network is not None:
            self.network.start(shared.load, shared.latency, shared.moving, ended)
        else:
            over = Later(self.env)
            over.callbacks.append(lambda _: ended())
            over.happen(shared.latency + shared.moving)

    def _blame(self, waiting: int, late: int, at: WaitedAt, seconds: float) -> None:
        key = waiting, late, at
        self.waited[key] = self.waited.get(key, 0.0) + seconds
