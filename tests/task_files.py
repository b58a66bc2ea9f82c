"""Task files: tables of pages."""

from pathlib import Path

Seeds = tuple[int, int]


def page_table(
    page: str,
    environment: str = "simulated",
    max_steps: int = 6,
    train: Seeds = (0, 50),
    heldout: Seeds = (50, 60),
    **changes: object,
) -> str:
    """Return the table of a page."""
    seeds = {"train_seeds": list(train), "heldout_seeds": list(heldout)} | changes
    more = "".join(f"{name} = {value}\n" for name, value in seeds.items())
    return f'[[pages]]\nenvironment = "{environment}"\npage = "{page}"\nmax_steps = {max_steps}\n{more}'


def write_tasks(folder: Path, *pages: str, **settings: object) -> dict[str, str]:
    """Write ``folder/tasks.toml`` with ``pages``, alike by :func:`page_table`; return the table ``tasks``."""
    path = folder / "tasks.toml"
    path.write_text("\n".join(page_table(page, **settings) for page in pages))
    return {"file": str(path)}
