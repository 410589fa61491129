"""NCCL topology XML: dumps and files written by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsim.errors import InputError
from shardsim.topology.imports.node import XML, Node
from shardsim.topology.imports.xml import MOST_DEPTH, MOST_ELEMENTS, pcie_bandwidth, read_xml

Text = Callable[[str], str]


def read(text: str) -> Node:
    return read_xml(text, "topo.xml")


def system(inner: str, cpu: str = 'numaid="0" affinity="000000ff"') -> str:
    return f'<system version="1"><cpu {cpu}>{inner}</cpu></system>'


def pci(bus: str, inner: str = "", told: str = 'class="0x030200"') -> str:
    return f'<pci busid="{bus}" {told} link_speed="16 GT/s" link_width="16">{inner}</pci>'


@pytest.fixture(scope="module")
def granite(fixture_text: Text) -> str:
    return fixture_text("granite-4gpu-dump.xml")


def test_a_dump_gives_gpus_in_cuda_order_with_links_ports_and_places(granite: str) -> None:
    node = read(granite)
    assert node.kind == XML
    assert [gpu.bus for gpu in node.gpus] == ["0000:22:00.0", "0000:12:00.0", "0000:52:00.0", "0000:62:00.0"]
    assert {gpu.switch_links for gpu in node.gpus} == {18}
    assert {(gpu.pci_id, gpu.compute) for gpu in node.gpus} == {("10de:2335", 90)}
    assert node.switches == ((0, 1, 2, 3),)
    assert [(nic.name, nic.card, nic.kind) for nic in node.nics] == [
        ("mlx5_0", "0x2000", "InfiniBand"),
        ("mlx5_1", "0x2000", "InfiniBand"),
        ("mlx5_2", "0x2001", "InfiniBand"),
        ("mlx5_3", "0x2001", "InfiniBand"),
    ]
    assert {nic.speed for nic in node.nics} == {25e9}
    assert node.distance(1, 4) == "PIX", "GPU1 and mlx5_0 under one switch"
    assert node.distance(0, 4) == "PHB"
    assert node.distance(0, 2) == "SYS"
    assert node.distance(4, 5) == "PIX", "two ports of one card"
    assert node.gpus[0].cpus == ((0, 15),)
    assert node.gpus[2].cpus == ((48, 63),)
    assert node.gpus[0].numa == (0,)
    assert node.nvlink_known
    assert node.notes == ()


def test_a_slow_link_above_a_switch_does_not_slow_its_devices(granite: str) -> None:
    """The link of 5 GT/s leads from the switch to the CPU; GPU and adapter reach each other below it."""
    assert {gpu.pcie for gpu in read(granite).gpus} == {pcie_bandwidth(32.0, 16)}


def test_a_hand_written_file_knows_no_nvlinks(fixture_text: Text) -> None:
    node = read(fixture_text("marble-2gpu-input.xml"))
    assert (len(node.gpus), len(node.nics)) == (2, 2)
    assert not node.nvlink_known
    assert node.notes == (
        "1 devices of PCI class 0x010802 are neither GPUs nor adapters",
        "NVLinks are not listed: NCCL finds them on the machine",
    )
    assert [node.nearest(gpu) for gpu in range(2)] == [("PIX", (0,)), ("PIX", (1,))]


def test_two_levels_of_bridges_are_pxb() -> None:
    gpu = pci("0000:04:00.0", pci("0000:05:00.0"), 'class="0x060400"')
    nic = pci("0000:06:00.0", pci("0000:07:00.0", told='class="0x020000"'), 'class="0x060400"')
    node = read(system(pci("0000:01:00.0", gpu + nic, 'class="0x060400"')))
    assert node.distance(0, 1) == "PXB"


def test_devices_right_below_a_cpu_meet_at_its_host_bridge() -> None:
    node = read(system(pci("0001:00:00.0") + pci("0002:00:00.0", told='class="0x020000"')))
    assert node.distance(0, 1) == "PHB"


def test_an_adapter_without_pci_device_hangs_at_its_cpu() -> None:
    node = read(system(pci("0001:00:00.0") + '<nic><net name="eth0" dev="0" speed="100000" guid="0x0"/></nic>'))
    assert (node.nics[0].name, node.nics[0].speed, node.nics[0].card) == ("eth0", 12.5e9, "")
    assert node.distance(0, 1) == "PHB"


def test_nvlinks_between_gpus_are_direct_and_counted_once() -> None:
    def gpu(dev: int, other: str) -> str:
        return f'<gpu dev="{dev}" sm="80" rank="{dev}"><nvlink target="{other}" count="12" tclass="0x030200"/></gpu>'

    node = read(system(pci("0001:00:00.0", gpu(0, "0002:00:00.0")) + pci("0002:00:00.0", gpu(1, "0001:00:00.0"))))
    assert dict(node.nvlinks) == {(0, 1): 12}
    assert node.links_of(0) == node.links_of(1) == 12


def test_links_to_the_cpu_and_to_the_unknown_are_told_apart() -> None:
    links = (
        '<nvlink target="0004:00:00.0" count="3" tclass="0x068001"/><nvlink target="0009:00:00.0" count="2"/>'
        '<nvlink target="fffffff:ffff:ff" count="6" tclass="0x068000"/><c2c bw="43125" count="8"/>'
    )
    node = read(system(pci("0001:00:00.0", f'<gpu dev="0" sm="70" rank="0">{links}</gpu>')))
    assert (node.gpus[0].cpu_links, node.gpus[0].switch_links) == (11, 6)
    assert node.notes == ("2 NVLinks lead to devices that are not in the file",)


def test_leaves_without_class_are_adapters_unless_nvidia_made_them() -> None:
    inner = pci("0000:02:00.0", told="") + pci("0000:03:00.0", told='vendor="0x10de" device="0x2330"')
    node = read(system(pci("0000:01:00.0", inner, told="")))
    assert (len(node.gpus), len(node.nics)) == (1, 1)
    assert "1 PCI devices have no class and were taken for adapters" in node.notes


def test_a_virtual_machine_knows_neither_numa_node_nor_speed() -> None:
    gpu = '<pci busid="0001:00:00.0" class="0x030200" link_speed="" link_width="0"><gpu dev="0" sm="90"/></pci>'
    one = read(system(gpu, 'host_hash="0x1" numaid="-1"')).gpus[0]
    assert (one.numa, one.cpus, one.pcie) == (None, None, None)


def test_several_hosts_tell_how_far_nvlink_reaches() -> None:
    def host(number: int) -> str:
        link = '<nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/>'
        gpus = "".join(
            pci(f"{number:04x}:0{index}:00.0", f'<gpu dev="{index}" sm="100" rank="{4 * number + index}">{link}</gpu>')
            for index in range(4)
        )
        return f'<cpu host_hash="0x{number + 1}" numaid="0">{gpus}</cpu>'

    node = read(f'<system version="1">{"".join(host(number) for number in range(18))}</system>')
    assert len(node.gpus) == 4
    assert node.domain_gpus == 72
    assert node.notes == ("18 hosts are listed; the node is the first of them",)


@pytest.mark.parametrize(
    ("gigatransfers", "lanes", "gigabytes"),
    [(2.5, 1, 0.25), (5.0, 16, 8.0), (8.0, 16, 15.75), (16.0, 16, 31.5), (32.0, 16, 63.0), (64.0, 16, 128.0)],
)
def test_pcie_bandwidths_are_those_of_the_standard(gigatransfers: float, lanes: int, gigabytes: float) -> None:
    assert pcie_bandwidth(gigatransfers, lanes) / 1e9 == pytest.approx(gigabytes, rel=1e-3)


@pytest.mark.parametrize("speed", ["16 GT/s", "16.0 GT/s PCIe", "16 GT/s PCIe/s", "  16.0 GT/s"])
def test_link_speeds_are_read_however_the_kernel_wrote_them(speed: str) -> None:
    text = system(f'<pci busid="0001:00:00.0" class="0x030200" link_speed="{speed}" link_width="8"/>')
    assert read(text).gpus[0].pcie == pcie_bandwidth(16.0, 8)


def test_text_around_the_file_is_passed_over(granite: str) -> None:
    assert read(f"$ cat topo.xml\n{granite}\n$ exit\n") == read(granite)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<graphs version='1'><graph id='0'/></graphs>", "is the result of NCCL's search"),
        ("<graphs version='1'><graph", "is the result of NCCL's search"),
        ("<?xml version='1.0'?><nvidia_smi_log/>", "is an nvidia-smi report"),
        ('<!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology version="2.0"/>', "is an hwloc topology"),
        ("<recipe/>", "is an XML file of 'recipe'"),
        (
            '<system version="2"><cpu><pci class="0x038000"><gpu gcn="90a"/></pci></cpu></system>',
            "is a topology of RCCL",
        ),
        ('<system version="1"><cpu><pci><gpu><xgmi/></gpu></pci></cpu></system>', "is a topology of RCCL"),
        ('<system version="1"/>', "holds neither a GPU nor an adapter"),
        ('<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"/>', "is the file cut off"),
        ('<system version="1"><cpu numaid="0"><pci busid="0000:01', "is the file cut off"),
        ('<system version="1"><cpu></system>', "is not valid XML: mismatched tag"),
        ("plain words", "is not XML"),
    ],
)
def test_what_is_no_topology_is_named(text: str, found: str) -> None:
    with pytest.raises(InputError, match=found):
        read(text)


def test_a_mistake_is_placed_on_its_line() -> None:
    with pytest.raises(InputError, match=r"topo\.xml:3: is not valid XML"):
        read('\n<system version="1">\n<cpu numaid=0/>\n</system>')


def test_entities_are_refused_where_they_are_declared() -> None:
    bomb = '<!DOCTYPE system [<!ENTITY a "aaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
    with pytest.raises(InputError, match=r"topo\.xml:1: declares an XML entity"):
        read(bomb + system(pci("&b;")))


def test_files_beside_it_are_not_opened() -> None:
    with pytest.raises(InputError, match="declares an XML entity"):
        read('<!DOCTYPE system [<!ENTITY secret SYSTEM "file:///etc/passwd">]>' + system(pci("&secret;")))


def test_depth_and_number_of_elements_are_bounded() -> None:
    with pytest.raises(InputError, match="nested too deeply"):
        read("<system>" + "<pci>" * MOST_DEPTH)
    with pytest.raises(InputError, match=f"more than {MOST_ELEMENTS:,} elements"):
        read("<system>" + "<cpu/>" * (MOST_ELEMENTS + 1) + "</system>")


def test_more_devices_than_any_node_has_are_refused() -> None:
    with pytest.raises(InputError, match="holds more than 1,024 devices"):
        read(system("".join(pci(f"{number:04x}:00:00.0") for number in range(1100))))


@given(st.data())
@settings(deadline=None)
def test_a_file_damaged_anywhere_is_read_or_refused(granite: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(granite)))
    length = data.draw(st.integers(0, 200))
    put = data.draw(st.one_of(st.just(""), st.text(max_size=20), st.sampled_from(["<pci>", "</pci>", "&x;", '"'])))
    try:
        node = read(granite[:at] + put + granite[at + length :])
    except InputError:
        return
    assert len(node.distances) == len(node.names) * (len(node.names) - 1) // 2
