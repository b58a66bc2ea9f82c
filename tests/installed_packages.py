"""Packages with entry points, installed into a folder of the import path as pip does, for tests."""

from pathlib import Path

from pytest import MonkeyPatch


def install_recipe(folder: Path, monkeypatch: MonkeyPatch, name: str, files: dict[str, str]) -> None:
    """Install a package ``name`` with these files and an entry point of its own name."""
    package = folder / name
    package.mkdir()
    (package / "__init__.py").touch()
    for file, text in files.items():
        (package / file).write_text(text)
    install_metadata(folder, name, "dart_streams.training_recipes", f"{name} = {name}")
    monkeypatch.syspath_prepend(folder)


def install_metadata(folder: Path, name: str, group: str, entry: str) -> None:
    """Lay the metadata of a package with one entry point into a folder."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
