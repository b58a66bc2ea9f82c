"""Memory limit of the process, and the number of documents that fit into it."""

import os

from hypothesis import given
from hypothesis import strategies as st

from dart_streams.config.hardware import memory_limit
from workers.env.backends.miniwob.context_pool import DOCUMENT_BYTES, DOCUMENTS_MIN, MEMORY_SHARE, max_documents

GIB = 2**30


def test_the_memory_limit_is_the_smaller_one_of_container_and_machine(tmp_path):
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = {"none": "max\n", "small": "67108864\n", "unlimited": "9223372036854771712\n"}
    for name, text in limits.items():
        (tmp_path / name).write_text(text)
    assert memory_limit([tmp_path / "none", tmp_path / "absent", tmp_path / "unlimited"]) == physical
    assert memory_limit([tmp_path / "none", tmp_path / "small"]) == 67108864


@given(contexts=st.integers(0, 500), memory=st.integers(0, 2**45))
def test_documents_stay_within_their_share_of_the_memory_but_for_a_minimum(contexts, memory):
    kept = max_documents(contexts, memory)
    assert kept == DOCUMENTS_MIN or kept * contexts * DOCUMENT_BYTES <= MEMORY_SHARE * memory


def test_a_laptop_keeps_more_documents_than_a_small_container():
    assert max_documents(16, 2 * GIB) == DOCUMENTS_MIN
    assert max_documents(16, 16 * GIB) > 40
