"""Hooks of the site: docstrings without the roles of Sphinx (``:class:`Name```), and a page for each recipe."""

import re
from pathlib import Path
from typing import Any

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):(?=<code>)")
SHORTENED = re.compile(r"<code>~(?:\w+\.)+(\w+)</code>")
RECIPES = Path(__file__).parents[1] / "plugins/recipes/dart_recipes"


def on_page_content(html: str, **_: Any) -> str:
    """Return a page without the roles, and with the last part of a name that a tilde shortens."""
    return SHORTENED.sub(r"<code>\1</code>", ROLE.sub("", html))


def recipe_pages() -> dict[str, str]:
    """Return the page of each recipe, by its place in the site; its links into ``docs`` are the site's."""
    texts = {
        page.parent.name.replace("_", "-"): page.read_text(encoding="utf-8")
        for page in sorted(RECIPES.glob("*/README.md"))
    }
    return {f"recipes/{name}.md": text.replace("](../../../../docs/", "](../") for name, text in texts.items()}


def on_config(config: Any) -> Any:
    """Add the recipes' pages to the navigation."""
    [section] = [entry["Recipes"] for entry in config["nav"] if "Recipes" in entry]
    section += [{content.partition("\n")[0].removeprefix("# "): place} for place, content in recipe_pages().items()]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the recipes' pages."""
    from mkdocs.structure.files import File

    for place, content in recipe_pages().items():
        files.append(File.generated(config, place, content=content))
    return files
