"""What is read is checked in C: kafka-python's own checksum takes longer than all the rest of reading a topic."""

from kafka.record import util


def test_records_are_checked_in_c():
    assert util.crc32c_c is not None, "the extra crc32c of kafka-python is not installed: run make setup"
