"""Host profiles: launch times with their sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardsim.errors import InputError
from shardsim.schema.catalog import names
from shardsim.schema.framework import load_framework
from shardsim.schema.hosts import load_host_profile
from shardsim.values.host import NO_HOST_TIME


@pytest.mark.parametrize("name", names("host-profile"))
def test_every_launch_time_says_where_it_comes_from(name: str) -> None:
    host = load_host_profile(name)
    assert set(host.provenance) == {"forward", "backward", "collective", "passes", "optimizer"}
    assert all(origin.source for origin in host.provenance.values())
    assert 0.0 <= host.backward <= host.forward < 1e-3


@pytest.mark.parametrize("name", names("framework"))
def test_every_framework_names_a_host_profile_that_exists(name: str) -> None:
    assert load_host_profile(load_framework(name).host_profile).name in names("host-profile")


def test_the_profile_none_is_a_host_that_is_never_late() -> None:
    none = load_host_profile("none")
    assert [none.forward, none.backward, none.collective, none.passes, none.optimizer] == [0.0] * 5
    assert NO_HOST_TIME.forward == 0.0


def test_a_change_makes_a_constant_assumed() -> None:
    host = load_host_profile("megatron-deepspeed", changes={"host.forward": "5 us"})
    assert host.forward == pytest.approx(5e-6)
    assert host.provenance["forward"].basis == "assumed"


def test_a_time_without_unit_and_an_unknown_key_are_refused_together(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "topologies" / "profiles" / "hosts" / "none.yaml"
    text = shipped.read_text(encoding="utf-8").replace('forward: {value: "0 s"', "forward: {value: 5e-6", 1)
    (tmp_path / "mine.yaml").write_text(text + "colective: 1 us\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_host_profile(str(tmp_path / "mine.yaml"))
    said = str(caught.value)
    assert "forward" in said
    assert "colective" in said
