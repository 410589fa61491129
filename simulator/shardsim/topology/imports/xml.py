"""NCCL topology XML: what ``NCCL_TOPO_DUMP_FILE`` writes, and what people write for ``NCCL_TOPO_FILE``.

``system`` holds a ``cpu`` for each NUMA node, that a tree of ``pci`` elements: bridges, and at the leaves GPUs and
adapters. A dump has ``gpu`` and ``net`` elements in them, with NVLinks and speeds; a file written by hand often has
only the PCI classes, and NCCL asks the machine for the rest.

Read with the standard library's expat. Entities are refused where they are declared, so nothing can expand.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from xml.parsers import expat

from shardsim.errors import InputError, Problem
from shardsim.topology.imports.node import XML, Distance, Gpu, Nic, Node, Pair

MOST_ELEMENTS = 50_000
MOST_DEPTH = 64
_MOST_DEVICES = 1024
_MOST_MASK = 512
_BRIDGE, _NETWORK, _GPU, _NVSWITCH, _CPU_LINK = "0x0604", "0x02", "0x03", "0x068000", "0x068001"
_NVIDIA = "0x10de"
_KINDS = {"0x0207": "InfiniBand", "0x0200": "Ethernet"}
_WORD = re.compile(r"[0-9a-f]{1,8}")
_MOST_COUNT = 1000
_SPEED = re.compile(r"\s*(\d{1,4}(?:\.\d{1,3})?)\s*GT/s")
_START = re.compile(r"^[ \t]*<", re.MULTILINE)
LOOK_ALIKES = {
    "graphs": "the result of NCCL's search (NCCL_GRAPH_DUMP_FILE): channels, not the node",
    "nvidia_smi_log": "an nvidia-smi report (nvidia-smi -q -x): the GPUs, not how they are joined",
    "topology": "an hwloc topology (lstopo): no NVLinks",
    "html": "a web page",
    "svg": "a drawing",
    "domain": "a libvirt machine",
    "node": "an lshw report",
    "list": "an lshw report",
}
"""What other XML files are, by the name of their root."""


@dataclass(slots=True)
class _Element:
    name: str
    attributes: dict[str, str]
    number: int
    children: list[_Element] = field(default_factory=list)

    def get(self, name: str) -> str:
        """Value of an attribute, in lower case; empty where there is none."""
        return self.attributes.get(name, "").strip().lower()

    def all(self, name: str) -> list[_Element]:
        """Children of a name."""
        return [child for child in self.children if child.name == name]


@dataclass(frozen=True, slots=True)
class _Device:
    """A GPU or an adapter port as found in the tree.

    ``parts`` are its ``pci`` and its ``gpu`` or ``net`` element, where it has them; ``bridges`` and ``rates`` the
    bridges above it and the links of these and of itself, outermost first.
    """

    cpu: _Element
    pci: _Element | None
    part: _Element | None
    bridges: tuple[int, ...]
    rates: tuple[float | None, ...]

    def get(self, name: str) -> str:
        """Attribute of its PCI element."""
        return "" if self.pci is None else self.pci.get(name)

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.pci is not None and _kind(self.pci) == "gpu"

    @property
    def pcie(self) -> float | None:
        """Slowest link below the outermost bridge: the link above that leads past its neighbours [bytes/s]."""
        known = [rate for rate in (self.rates[1:] or self.rates) if rate is not None]
        return min(known, default=None)


def read_xml(text: str, where: str) -> Node:
    """Read an NCCL topology file.

    Parameters
    ----------
    text : str
        The file; lines before the first tag are passed over.
    where : str
        Name of the file, for messages.

    Returns
    -------
    Node
        Distances are NCCL's: what it calls PHB may be NODE in ``nvidia-smi topo -m``.

    Raises
    ------
    InputError
        Not XML, cut off, too large, entities, another kind of file, or no GPU and no adapter in it.

    Examples
    --------
    >>> switch = '<pci busid="0000:01:00.0" class="0x060400"><pci busid="0000:02:00.0" class="0x030200"/></pci>'
    >>> node = read_xml(f'<system version="1"><cpu numaid="0">{switch}</cpu></system>', "small.xml")
    >>> len(node.gpus), node.nvlink_known
    (1, False)
    """
    root = _parsed(text, where)
    if root.name != "system":
        known = LOOK_ALIKES.get(root.name.lower(), f"an XML file of {root.name!r}")
        raise InputError(Problem(f"is {known}", where, "give NCCL's topology: NCCL_TOPO_DUMP_FILE, root <system>"))
    if _is_amd(root):
        what = "is a topology of RCCL (AMD or Hygon GPUs): no NVLinks"
        raise InputError(Problem(what, where, "give NCCL's topology of NVIDIA GPUs"))
    hosts = _hosts(root)
    others: Counter[str] = Counter()
    shown = [[device for cpu in host for device in _devices(cpu, cpu, (), (), others)] for host in hosts]
    if not any(shown):
        raise InputError(Problem("holds neither a GPU nor an adapter", where, "give a complete topology file"))
    if sum(map(len, shown)) > _MOST_DEVICES:
        raise InputError(Problem(f"holds more than {_MOST_DEVICES:,} devices", where, "is it the file you meant?"))
    notes = [f"{count} devices of PCI class {told} are neither GPUs nor adapters" for told, count in others.items()]
    return _node(shown, notes)


# Parsing.


def _parsed(text: str, where: str) -> _Element:
    """Build a tree of elements, within bounds."""
    start = _START.search(text)
    if start is None:
        raise InputError(Problem("is not XML", where))
    before = text[: start.start()].count("\n")
    end = text.rfind("</system>")
    body = text[start.start() : end + len("</system>")] if end >= 0 else text[start.start() :].rstrip()
    top: list[_Element] = []
    stack: list[_Element] = []
    parser = expat.ParserCreate()
    seen = 0

    def place() -> str:
        return f"{where}:{parser.CurrentLineNumber + before}"

    def opened(name: str, attributes: dict[str, str]) -> None:
        nonlocal seen
        seen += 1
        if seen > MOST_ELEMENTS or len(stack) >= MOST_DEPTH:
            what = f"more than {MOST_ELEMENTS:,} elements" if seen > MOST_ELEMENTS else "elements nested too deeply"
            raise InputError(Problem(what, place(), "is it the file you meant?"))
        element = _Element(name, attributes, seen)
        (stack[-1].children if stack else top).append(element)
        stack.append(element)

    def closed(_: str) -> None:
        stack.pop()

    def declared(*_: object) -> None:
        raise InputError(Problem("declares an XML entity, which no topology file does", place(), "leave it out"))

    parser.StartElementHandler = opened
    parser.EndElementHandler = closed
    parser.EntityDeclHandler = declared
    try:
        parser.Parse(body.strip(), True)  # noqa: FBT003  # expat's signature
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        cut = error.code in (
            expat.errors.codes[expat.errors.XML_ERROR_NO_ELEMENTS],
            expat.errors.codes[expat.errors.XML_ERROR_UNCLOSED_TOKEN],
        )
        if top and top[0].name != "system":  # what it is matters more than where it breaks
            return top[0]
        right = "it ends too early: is the file cut off?" if cut else ""
        raise InputError(Problem(f"is not valid XML: {reason}", f"{where}:{error.lineno + before}", right)) from None
    except ValueError as error:  # text that cannot be encoded, such as half a surrogate pair
        raise InputError(Problem(f"is not text: {error}", where)) from None
    return top[0]


# From elements to devices.


def _is_amd(root: _Element) -> bool:
    return any("gcn" in element.attributes or element.name == "xgmi" for element in _every(root))


def _every(element: _Element) -> Iterator[_Element]:
    yield element
    for child in element.children:
        yield from _every(child)


def _hosts(root: _Element) -> list[list[_Element]]:
    """NUMA nodes of each host: a dump of a rack-wide NVLink domain has those of several."""
    hosts: dict[str, list[_Element]] = {}
    for cpu in root.all("cpu"):
        hosts.setdefault(cpu.get("host_hash"), []).append(cpu)
    return list(hosts.values()) or [[]]


def _devices(
    element: _Element, cpu: _Element, bridges: tuple[int, ...], rates: tuple[float | None, ...], others: Counter[str]
) -> Iterator[_Device]:
    """Devices under an element, in the order of the file; PCI classes that are none of ours are counted."""
    for child in element.children:
        if child.name == "nic":
            yield from (_Device(cpu, None, net, bridges, rates) for net in child.all("net"))
        if child.name != "pci":
            continue
        kind, here = _kind(child), (*rates, _rate(child))
        if kind == "bridge":
            yield from _devices(child, cpu, (*bridges, child.number), here, others)
        elif kind == "gpu":
            yield _Device(cpu, child, next(iter(child.all("gpu")), None), bridges, here)
        elif kind == "nic":
            nets: list[_Element | None] = [net for nic in child.all("nic") for net in nic.all("net")]
            yield from (_Device(cpu, child, net, bridges, here) for net in nets or [None])
        else:
            others[child.get("class")] += 1


def _kind(pci: _Element) -> str:
    """What a PCI device is: gpu, nic, bridge, other."""
    told = pci.get("class")
    if pci.all("gpu") or (told.startswith(_GPU) and not pci.all("pci")):
        return "gpu"
    if told.startswith(_NETWORK) or pci.all("nic"):
        return "nic"
    if told.startswith(_BRIDGE) or pci.all("pci"):
        return "bridge"
    if not told:
        return "gpu" if pci.get("vendor") == _NVIDIA else "nic"
    return "other"


def _rate(pci: _Element) -> float | None:
    """Bandwidth of a PCIe link per direction [bytes/s]; None where the file has none, as in virtual machines."""
    speed = _SPEED.match(pci.get("link_speed").upper().replace("GT/S", "GT/s"))
    width = _number(pci.get("link_width"), 64)
    return None if speed is None or not width else pcie_bandwidth(float(speed[1]), width)


def pcie_bandwidth(gigatransfers: float, lanes: int) -> float:
    """Bandwidth of a PCIe link per direction [bytes/s], line code taken off.

    Parameters
    ----------
    gigatransfers : float
        Rate of a lane [GT/s].
    lanes : int
        (-).

    Returns
    -------
    float
        8b/10b below 8 GT/s, 128b/130b from there (PCI Express Base Specification 3.0, section 4.2), none from 64 GT/s.

    Examples
    --------
    >>> round(pcie_bandwidth(16.0, 16) / 1e9, 2)
    31.51
    """
    code = 8 / 10 if gigatransfers < 8 else 128 / 130 if gigatransfers < 64 else 1.0
    return gigatransfers * 1e9 * lanes * code / 8


def _number(text: str, most: int) -> int | None:
    """A whole number between 0 and a bound; None for anything else."""
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        return None
    return min(int(text), most)


# From devices to a node.


def _node(shown: list[list[_Device]], notes: list[str]) -> Node:
    """The node of the first host; the others tell how far NVLink reaches."""
    devices = shown[0]
    gpus = _ordered([device for device in devices if device.is_gpu])
    nics = [device for device in devices if not device.is_gpu]
    unclassed = sum(1 for nic in nics if nic.pci is not None and nic.part is None and not nic.get("class"))
    if unclassed:
        notes.append(f"{unclassed} PCI devices have no class and were taken for adapters")
    if not gpus:
        notes.append("no GPU is listed: NCCL finds them on the machine")
    stated = any(gpu.part is not None for gpu in gpus)
    if gpus and not stated:
        notes.append("NVLinks are not listed: NCCL finds them on the machine")
    if len(shown) > 1:
        notes.append(f"{len(shown)} hosts are listed; the node is the first of them")
    direct, switch, cpu = _nvlinks(gpus, notes)
    names = _unique([device.part.attributes.get("name", "") if device.part else "" for device in nics])
    return Node(
        kind=XML,
        gpus=tuple(_gpu(number, gpu, switch[number], cpu[number]) for number, gpu in enumerate(gpus)),
        nics=tuple(_nic(name, nic) for name, nic in zip(names, nics, strict=True)),
        distances={
            (a, b): _distance(one, other) for (a, one), (b, other) in combinations(enumerate([*gpus, *nics]), 2)
        },
        nvlinks=direct,
        switches=(switched,) if (switched := tuple(number for number, count in enumerate(switch) if count)) else (),
        nvlink_known=stated,
        domain_gpus=sum(device.is_gpu for host in shown for device in host) if len(shown) > 1 else None,
        notes=tuple(notes),
    )


def _ordered(gpus: list[_Device]) -> list[_Device]:
    """GPUs by their CUDA number where all have one, else in the order of the file."""
    numbers = [_number(gpu.part.get("dev"), _MOST_DEVICES) if gpu.part else None for gpu in gpus]
    if len({number for number in numbers if number is not None}) < len(gpus):
        return gpus
    return [gpu for _, gpu in sorted(zip(numbers, gpus, strict=True), key=lambda item: item[0] or 0)]


def _unique(names: list[str]) -> list[str]:
    """Names of adapters; their number where they have none of their own."""
    return [name if name and names.count(name) == 1 else f"NIC{number}" for number, name in enumerate(names)]


def _gpu(number: int, device: _Device, switch_links: int, cpu_links: int) -> Gpu:
    vendor, product = (device.get(name).removeprefix("0x") for name in ("vendor", "device"))
    numa = _number(device.cpu.get("numaid"), _MOST_DEVICES)
    return Gpu(
        name=f"GPU{number}",
        cpus=_cpus(device.cpu.get("affinity")),
        numa=None if numa is None else (numa,),
        bus=device.get("busid"),
        pci_id=f"{vendor}:{product}" if vendor and product else "",
        compute=(_number(device.part.get("sm"), 999) or None) if device.part else None,
        switch_links=switch_links,
        cpu_links=cpu_links,
        pcie=device.pcie,
    )


def _nic(name: str, device: _Device) -> Nic:
    """An adapter port; NCCL writes its speed in Mb/s."""
    speed = (_number(device.part.get("speed"), 10**8) or 0) if device.part else 0
    card = device.part.get("guid") if device.part else ""
    return Nic(
        name=name,
        device="" if name.startswith("NIC") or not device.part else name,
        bus=device.get("busid"),
        kind=_KINDS.get(device.get("class")[:6], ""),
        speed=speed * 1e6 / 8 or None,
        card="" if card == "0x0" else card,
        pcie=device.pcie,
    )


def _distance(a: _Device, b: _Device) -> Distance:
    """PCIe distance: bridges on the way, if it passes no CPU."""
    if a.cpu is not b.cpu:
        return "SYS"
    if a.pci is not None and a.pci is b.pci:
        return "PIX"
    common = sum(1 for one, other in zip(a.bridges, b.bridges, strict=False) if one == other)
    if not common:
        return "PHB"
    return "PIX" if len(a.bridges) + len(b.bridges) - 2 * common + 1 <= 1 else "PXB"


def _nvlinks(gpus: list[_Device], notes: list[str]) -> tuple[dict[Pair, int], list[int], list[int]]:
    """NVLinks between GPUs; of each GPU to switches; of each GPU to the CPU."""
    by_bus = {gpu.get("busid"): number for number, gpu in enumerate(gpus)}
    direct: dict[Pair, int] = {}
    switch, cpu, astray = [0] * len(gpus), [0] * len(gpus), 0
    for number, gpu in enumerate(gpus):
        if gpu.part is None:
            continue
        cpu[number] = sum(_number(link.get("count"), _MOST_COUNT) or 1 for link in gpu.part.all("c2c"))
        for link in gpu.part.all("nvlink"):
            count, told = _number(link.get("count"), _MOST_COUNT) or 1, link.get("tclass")
            target = by_bus.get(link.get("target"))
            if target is not None and target != number:
                pair = (min(number, target), max(number, target))
                direct[pair] = max(direct.get(pair, 0), count)
            elif told.startswith(_CPU_LINK):
                cpu[number] += count
            elif told.startswith(_NVSWITCH):
                switch[number] += count
            else:
                astray += count
    if astray:
        notes.append(f"{astray} NVLinks lead to devices that are not in the file")
    return direct, switch, cpu


def _cpus(mask: str) -> tuple[Pair, ...] | None:
    """CPU ranges of an affinity mask in hexadecimal, 32 bits a word, the highest first.

    >>> _cpus("0000000f,00ff0000")
    ((16, 23), (32, 35))
    """
    words = mask.split(",")
    if len(words) > _MOST_MASK or not all(_WORD.fullmatch(word) for word in words):
        return None
    bits = f"{int(''.join(word.zfill(8) for word in words), 16):b}"[::-1]
    return tuple((match.start(), match.end() - 1) for match in re.finditer("1+", bits)) or None
