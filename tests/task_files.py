"""Task files of simulated pages."""

from pathlib import Path


def write_tasks(
    folder: Path,
    *pages: str,
    max_steps: int = 6,
    train: tuple[int, int] = (0, 50),
    heldout: tuple[int, int] = (50, 60),
    **changes: object,
) -> dict[str, str]:
    """Write ``folder/tasks.toml`` with simulated ``pages``; return the configuration's table ``tasks``."""
    seeds = {"train_seeds": list(train), "heldout_seeds": list(heldout)} | changes
    more = "".join(f"{name} = {value}\n" for name, value in seeds.items())
    tables = (f'[[pages]]\nenvironment = "simulated"\npage = "{p}"\nmax_steps = {max_steps}\n{more}' for p in pages)
    path = folder / "tasks.toml"
    path.write_text("\n".join(tables))
    return {"file": str(path)}
