"""Quantities: exact conversion, units demanded, and bits never taken for bytes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim import units
from shardsim.units import UNITS, parse

KINDS = sorted(UNITS)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("900 GB/s", "bandwidth", 900e9),
        ("900GB/s", "bandwidth", 900e9),
        ("400 Gb/s", "bandwidth", 50e9),
        ("400 Gbps", "bandwidth", 50e9),
        ("3.2 Tbit/s", "bandwidth", 400e9),
        ("12.5 GiB/s", "bandwidth", 12.5 * 2**30),
        ("1 b/s", "bandwidth", 0.125),
        ("80 GB", "size", 80e9),
        ("80 GiB", "size", 80 * 2**30),
        ("512 bytes", "size", 512),
        ("64 KiB", "size", 65536),
        ("  1e3   B ", "size", 1000),
        ("10 us", "time", 1e-5),
        ("10 µs", "time", 1e-5),
        ("20 us", "time", 2e-5),
        ("1.665 us", "time", 1.665e-6),
        ("90 min", "time", 5400),
        ("2 d", "time", 172_800),
        ("312 TFLOP/s", "flop_rate", 312e12),
        ("312 TFLOPS", "flop_rate", 312e12),
        ("9.5 PFLOP/s", "flop_rate", 9.5e15),
        ("1 EFLOP", "flop", 1e18),
        ("700 W", "power", 700),
        ("10.2 kW", "power", 10_200),
        ("1.41 GHz", "frequency", 1.41e9),
        ("0 s", "time", 0),
        (".5 s", "time", 0.5),
        ("+2. s", "time", 2),
    ],
)
def test_a_quantity_is_read_exactly(text, kind, value):
    assert parse(text, kind) == value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [900, 900.5, "900", "9e2", 0])
def test_a_number_without_a_unit_is_refused_with_an_example(number, kind):
    with pytest.raises(ValueError, match="has no unit; write it with one, such as"):
        parse(number, kind)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("900 GB", "bandwidth"),
        ("900 GB/s", "size"),
        ("900 gb/s", "bandwidth"),
        ("900 GBps", "bandwidth"),
        ("80 gib", "size"),
        ("3 us/s", "time"),
        ("312 TFLOP", "flop_rate"),
        ("312 tflops", "flop_rate"),
        ("700 w", "power"),
        ("3 parsec", "time"),
        ("8 bps", "bandwidth"),
    ],
)
def test_a_unit_of_something_else_is_refused_by_name(text, kind):
    with pytest.raises(ValueError, match=r"is not a unit of .*; write it like"):
        parse(text, kind)


@pytest.mark.parametrize("text", ["fast", "", "GB/s", "1,5 GB/s", "1 000 GB/s", "--3 GB/s", "1e GB/s x", "0x10 GB/s"])
def test_text_that_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="write"):
        parse(text, "bandwidth")


@pytest.mark.parametrize("value", [None, True, [], {"value": 1}, object()])
def test_a_value_that_is_no_text_is_refused(value):
    with pytest.raises(ValueError, match="is not a bandwidth; write it with its unit"):
        parse(value, "bandwidth")


@pytest.mark.parametrize("text", ["-1 GB/s", "1e400 GB/s", "1e999999999999 GB/s", "-0.1 B/s"])
def test_a_negative_or_endless_quantity_is_refused(text):
    with pytest.raises(ValueError, match="is not a finite, non-negative bandwidth"):
        parse(text, "bandwidth")


@given(st.sampled_from(KINDS), st.data(), st.floats(0, 1e6, allow_subnormal=False))
def test_every_unit_multiplies_by_its_factor(kind, data, number):
    unit = data.draw(st.sampled_from(sorted(UNITS[kind])))
    assert parse(f"{number!r} {unit}", kind) == pytest.approx(number * UNITS[kind][unit], rel=1e-15)


@given(st.text(max_size=20), st.sampled_from(KINDS))
def test_any_text_gives_a_finite_value_or_a_value_error(text, kind):
    try:
        value = parse(text, kind)
    except ValueError:
        return
    assert math.isfinite(value)
    assert value >= 0


def test_a_bit_is_an_eighth_of_a_byte_in_every_prefix():
    for prefix in ("", "k", "M", "G", "T"):
        assert 8 * UNITS["bandwidth"][f"{prefix}b/s"] == UNITS["bandwidth"][f"{prefix}B/s"]
        assert UNITS["bandwidth"][f"{prefix}bit/s"] == UNITS["bandwidth"][f"{prefix}b/s"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: units.format_time(0.0), "0 s"),
        (lambda: units.format_time(3600.0), "3600 s"),
        (lambda: units.format_time(0.0123), "12.3 ms"),
        (lambda: units.format_time(3.2e-6), "3.2 us"),
        (lambda: units.format_time(5e-9), "5 ns"),
        (lambda: units.format_size(0.0), "0 B"),
        (lambda: units.format_size(80 * 2.0**30), "80 GiB"),
        (lambda: units.format_size(1536.0), "1.5 KiB"),
        (lambda: units.format_bandwidth(6.25e9), "6.25 GB/s"),
        (lambda: units.format_flop_rate(39e12), "39 TFLOP/s"),
    ],
)
def test_quantities_are_written_for_people(call, text):
    assert call() == text


def test_tables_are_in_gib_gigabytes_and_teraflops():
    assert units.gib(80 * 2.0**30) == 80
    assert units.gigabytes_per_second(50e9) == 50
    assert units.tflops(312e12) == 312
