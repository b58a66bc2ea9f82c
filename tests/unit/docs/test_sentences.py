"""A sentence of the documentation has at most 25 words; pages that are not converted yet are listed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
MOST = 25
GENERATED = {DOCS / "configuration.md", DOCS / "cli.md", DOCS / "metrics.md", DOCS / "changelog.md"}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in DOCS.rglob("*.md") if page not in GENERATED and DOCS / "lab" not in page.parents),
]
NOT_YET: set[str] = set()
"""Pages with longer sentences. A page that has none any more must be taken off."""

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
    """Yield the paragraphs and list items of a page as plain text, a span of code as one word."""
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
    """Return a text without the marks of links and emphasis; a span of code is a word that may begin a sentence."""
    return re.sub(r"\*\*|__", "", LINK.sub(r"\1", CODE.sub("Code", text)))


def sentences(text: str) -> list[str]:
    return [sentence for paragraph in paragraphs(text) for sentence in END.split(paragraph)]


def words(sentence: str) -> int:
    return sum(bool(WORD.search(word)) for word in sentence.split())


def too_long(page: Path) -> list[str]:
    counted = [(words(sentence), sentence) for sentence in sentences(page.read_text())]
    return [f"{count} words: {sentence}" for count, sentence in counted if count > MOST]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if name(page) not in NOT_YET], ids=name)
def test_a_sentence_has_at_most_25_words(page: Path):
    assert not (found := too_long(page)), "\n".join(found)


def test_the_help_of_a_command_and_of_an_option_has_sentences_of_at_most_25_words():
    """Of the page that is generated from the help texts: its paragraphs, and the cells of its tables."""
    page = DOCS / "cli.md"
    cells = [cell for line in page.read_text().splitlines() if line.startswith("|") for cell in line.split("|")]
    assert len(cells) > 500
    found = [sentence for cell in cells for sentence in END.split(plain(cell)) if words(sentence) > MOST]
    assert not found + too_long(page)


def test_a_page_that_is_not_converted_has_a_long_sentence():
    clean = [page for page in sorted(NOT_YET) if not too_long(ROOT / page)]
    assert not clean, "take them off NOT_YET"


def test_sentences_are_found_in_paragraphs_and_items_but_not_in_code_tables_and_headings():
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
    assert sentences(text) == [
        "One linked text.",
        "Still sentence, with Code in it.",
        "It ends here (there).",
        "Version 1.5 is one word.",
        "An item of two lines.",
        "Another.",
        "One more?",
    ]


def test_a_sentence_of_26_words_is_found(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"Word{' word' * 24}. Word{' word' * 25}.\n")
    assert [line.partition(":")[0] for line in too_long(page)] == ["26 words"]
