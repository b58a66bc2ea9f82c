"""A sentence of the documentation has at most 25 words, and so has a cell of a table."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import ROOT

DOCS = ROOT / "docs"
MOST = 25
GENERATED = {DOCS / "configuration.md", DOCS / "cli.md", DOCS / "metrics.md", DOCS / "changelog.md"}
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "plugins/recipes/dart_recipes").glob("*/README.md")),
    *sorted(ROOT.glob("plugins/*/README.md")),
    *sorted(page for page in DOCS.rglob("*.md") if page not in GENERATED and DOCS / "lab" not in page.parents),
]

FENCE = re.compile(r"^ *(```|~~~).*?^ *\1[^\S\n]*$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
DROPPED = re.compile(r"\s*(#+ |\||:::|!\[|--8<--|options:$|members:)")
"""Lines that hold no sentence: headings, rows of tables, pictures, directives."""
ITEM = re.compile(r"^\s*([-*]|\d+\.)\s+")
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)\s]*\)")
CODE = re.compile(r"``.+?``|`[^`]+`")
END = re.compile(r"(?<=[.!?])[)\"'*_]*\s+(?=[\"'(*_]*[A-Z0-9])")
WORD = re.compile(r"[^\W_]")


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a page as plain text."""
    text = COMMENT.sub("", FENCE.sub("\n\n", text))
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        dropped = bool(DROPPED.match(line)) or not line.strip()
        if (dropped or ITEM.match(line)) and lines:
            yield plain(" ".join(lines))
            lines = []
        if not dropped:
            lines.append(ITEM.sub("", line, count=1).strip())


def plain(text: str) -> str:
    """Return a text without the marks of links and emphasis; each word of a code span becomes ``Code``."""
    text = CODE.sub(lambda span: " ".join("Code" for _ in span[0].split()), text)
    return re.sub(r"\*\*|__", "", LINK.sub(r"\1", text))


def cells(text: str) -> Iterator[str]:
    """Yield the cells of the tables of a page as plain text."""
    for line in FENCE.sub("", text).splitlines():
        if line.lstrip().startswith("|"):
            yield from plain(line).split("|")


def sentences(text: str) -> list[str]:
    return [sentence for paragraph in paragraphs(text) for sentence in END.split(paragraph)]


def words(sentence: str) -> int:
    return sum(bool(WORD.search(word)) for word in sentence.split())


def too_long(page: Path) -> list[str]:
    text = page.read_text()
    parts = [*sentences(text), *(sentence for cell in cells(text) for sentence in END.split(cell))]
    counted = [(words(sentence), sentence) for sentence in parts]
    return [f"{count} words: {sentence}" for count, sentence in counted if count > MOST]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_sentence_has_at_most_25_words(page: Path):
    assert not (found := too_long(page)), "\n".join(found)


def test_help_texts_have_sentences_of_at_most_25_words():
    page = DOCS / "cli.md"
    assert len(list(cells(page.read_text()))) > 500
    assert not too_long(page)


def test_sentences_are_found_in_paragraphs_and_items():
    text = """# A title. Of two sentences
One [linked text. Still](page.md) sentence, with `dart-streams run a.toml. No` in it.
It ends here (**there**). Version 1.5 is one word.

```
A fence. Nothing.
```
| a cell. | Another. |

- An item
  of two lines.
- Another. One more?
"""
    first = ["One linked text.", "Still sentence, with Code Code Code Code in it.", "It ends here (there)."]
    items = ["An item of two lines.", "Another.", "One more?"]
    assert sentences(text) == [*first, "Version 1.5 is one word.", *items]
    assert [cell.strip() for cell in cells(text)] == ["", "a cell.", "Another.", ""]


def test_a_sentence_of_26_words_is_found(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"Word{' word' * 24}. Word{' word' * 25}.\n")
    assert [line.partition(":")[0] for line in too_long(page)] == ["26 words"]
