"""Recipes of other packages, installed into a folder as pip does, for tests."""

from pathlib import Path

from pytest import MonkeyPatch


def install_recipe(folder: Path, monkeypatch: MonkeyPatch, name: str, files: dict[str, str]) -> None:
    """Install a package ``name`` with these files and an entry point of its own name."""
    package = folder / name
    package.mkdir()
    (package / "__init__.py").touch()
    for file, text in files.items():
        (package / file).write_text(text)
    metadata = folder / f"{name}-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[dart_streams.training_recipes]\n{name} = {name}\n")
    monkeypatch.syspath_prepend(folder)
