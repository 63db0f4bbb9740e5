from __future__ import annotations

import time

import numpy as np
import pytest

from elmo.formats.containers.tf_checkpoint import _DEGREE, _TARGETS, crc32c, mask_crc
from tests.formats import write_bundle

POLYNOMIAL = 0x11EDC6F41


def test_the_check_values_of_rfc_3720_come_out() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"") == 0


def test_masking_is_that_of_leveldb() -> None:
    assert mask_crc(0) == 0xA282EAD8
    assert mask_crc(crc32c(b"123456789")) == write_bundle.mask_crc(0xE3069283) == 0xC78AB0E5


def test_the_sparse_polynomial_is_a_multiple_of_the_checksums_own() -> None:
    remainder = sum(1 << (_DEGREE - target) for target in _TARGETS) | 1 << _DEGREE
    while remainder.bit_length() > 32:
        remainder ^= POLYNOMIAL << (remainder.bit_length() - 33)
    assert remainder == 0


@pytest.mark.parametrize("size", [1, 3, 4, 289, 290, 580, 581, 583, 871, 4096, 30_011])
def test_every_length_agrees_with_the_plain_loop(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert crc32c(data) == write_bundle.crc32c(data.tobytes())


def test_pieces_go_on_where_the_last_one_ended() -> None:
    data = np.random.default_rng(0).integers(0, 256, 5_000_000, dtype=np.uint8)  # several chunks
    whole = crc32c(data)
    for cut in (0, 1, 290, 1_234_567, (1 << 21) - 1, 5_000_000):
        assert crc32c(data[cut:], crc32c(data[:cut])) == whole


def test_one_flipped_bit_anywhere_is_seen() -> None:
    data = np.random.default_rng(0).integers(0, 256, 3_000_000, dtype=np.uint8)
    whole = crc32c(data)
    for at in (0, 1, 2_097_151, 2_097_152, 2_999_999):
        data[at] ^= 16
        assert crc32c(data) != whole
        data[at] ^= 16


def test_a_checkpoint_of_400_megabytes_takes_seconds_and_no_minutes() -> None:
    data = np.zeros(40_000_000, dtype=np.uint8)
    begin = time.process_time()
    crc32c(data)
    assert 40 / (time.process_time() - begin) > 100  # MB/s; some 2000 on an idle core
