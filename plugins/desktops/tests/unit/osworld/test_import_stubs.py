import importlib
import sys
from collections.abc import Iterator

import pytest

from dart_desktops.osworld.evaluator import faults, import_stubs


@pytest.fixture(autouse=True)
def finder() -> Iterator[None]:
    before = dict(sys.modules)
    found = import_stubs.StubFinder()
    sys.meta_path.append(found)
    faults.recorded.clear()
    yield
    sys.meta_path.remove(found)
    for name in set(sys.modules) - set(before):
        if name.partition(".")[0] in import_stubs.HEAVY:
            del sys.modules[name]
    faults.recorded.clear()


def test_a_heavy_package_and_its_modules_can_be_imported_and_named():
    drive = importlib.import_module("pydrive.drive")
    assert drive.GoogleDrive | None
    assert importlib.import_module("borb.pdf").Document.anything.at_all
    assert faults.recorded == []


def test_a_call_is_a_fault_even_where_its_exception_is_swallowed():
    transformers = importlib.import_module("transformers")
    with pytest.raises(import_stubs.MissingPackage, match="transformers is not installed"):
        transformers.feature.mfcc(y=1)
    assert len(faults.recorded) == 1
    assert "transformers.feature.mfcc" in faults.recorded[0]


def test_any_other_package_is_still_missing():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_package_of_osworld")
