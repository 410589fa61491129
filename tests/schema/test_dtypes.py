"""Data types by any of their spellings, and nothing else."""

from __future__ import annotations

import pytest

from shardsim.calibrate.nccl.rows import DTYPE_BYTES
from shardsim.cost.corrections import NARROW
from shardsim.errors import InputError
from shardsim.schema.dtypes import SPELLINGS, data_type


def test_no_spelling_means_two_types():
    words = [word for name, others in SPELLINGS.items() for word in (name, *others)]
    assert len(words) == len(set(words))


@pytest.mark.parametrize("name", DTYPE_BYTES)
def test_what_nccl_tests_prints_is_known_with_its_width(name):
    found = data_type(name)
    eight_bit = DTYPE_BYTES[name] == 1
    assert (found in NARROW) == eight_bit


@pytest.mark.parametrize(
    ("spelling", "name"),
    [("BF16", "bf16"), ("torch.float16", "fp16"), ("ncclFloat", "fp32"), (" Half ", "fp16"), ("uint8_t", "uint8")],
)
def test_case_and_prefixes_do_not_matter(spelling, name):
    assert data_type(spelling) == name


def test_an_unknown_type_is_refused_with_near_ones_or_all():
    with pytest.raises(InputError, match=r"'fp9' is no data type \(did you mean"):
        data_type("fp9")
    with pytest.raises(InputError, match=r"'' is no data type \(one of bf16, fp16, fp32"):
        data_type("")
