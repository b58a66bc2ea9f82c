"""Writer and reader of small OpenDocument files (OASIS OpenDocument 1.2)."""

import io
import zipfile
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree
from xml.sax.saxutils import escape

OASIS = "urn:oasis:names:tc:opendocument:xmlns:"
SPACES = {
    "office": f"{OASIS}office:1.0",
    "table": f"{OASIS}table:1.0",
    "text": f"{OASIS}text:1.0",
    "draw": f"{OASIS}drawing:1.0",
    "presentation": f"{OASIS}presentation:1.0",
    "style": f"{OASIS}style:1.0",
    "svg": f"{OASIS}svg-compatible:1.0",
}
ARCHIVE_DATE = (2024, 1, 1, 0, 0, 0)
"""Date of each file in an archive, so that archives are reproducible."""
MAX_CELLS = 1000
"""Maximum number of read rows and columns: the last empty ones of a sheet are repeated a million times."""
Cell = str | float


def write_spreadsheet(rows: Sequence[Sequence[Cell]]) -> bytes:
    """Return a spreadsheet with one table of numbers and texts."""
    table = "".join(f"<table:table-row>{''.join(map(cell_xml, row))}</table:table-row>" for row in rows)
    return pack_document("spreadsheet", f'<table:table table:name="Sheet1">{table}</table:table>')


def cell_xml(value: Cell) -> str:
    """Return the XML of a cell."""
    if isinstance(value, str):
        return f'<table:table-cell office:value-type="string"><text:p>{escape(value)}</text:p></table:table-cell>'
    number = f'office:value-type="float" office:value="{value:g}"'
    return f"<table:table-cell {number}><text:p>{value:g}</text:p></table:table-cell>"


def write_text_document(paragraphs: Sequence[str]) -> bytes:
    """Return a text document."""
    return pack_document("text", "".join(f"<text:p>{escape(paragraph)}</text:p>" for paragraph in paragraphs))


def write_presentation(title: str) -> bytes:
    """Return a presentation of one slide with a title."""
    box = 'svg:width="24cm" svg:height="3cm" svg:x="2cm" svg:y="2cm"'
    frame = f'<draw:frame {box} presentation:class="title"><draw:text-box><text:p>{escape(title)}</text:p>'
    page = f'<draw:page draw:name="One" draw:master-page-name="Plain">{frame}</draw:text-box></draw:frame></draw:page>'
    return pack_document("presentation", page, MASTER)


MASTER = (
    '<office:automatic-styles><style:page-layout style:name="Screen"><style:page-layout-properties '
    'xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0" fo:page-width="28cm" '
    'fo:page-height="15.75cm"/></style:page-layout></office:automatic-styles>'
    '<office:master-styles><style:master-page style:name="Plain" style:page-layout-name="Screen"/>'
    "</office:master-styles>"
)


def pack_document(kind: str, body: str, styles: str = "") -> bytes:
    """Return a document of a kind with this body and page styles."""
    names = " ".join(f'xmlns:{name}="{space}"' for name, space in SPACES.items())
    declared = f'{names} office:version="1.2"'
    files = {
        "mimetype": f"application/vnd.oasis.opendocument.{kind}",
        "content.xml": f"<office:document-content {declared}><office:body><office:{kind}>{body}</office:{kind}>"
        "</office:body></office:document-content>",
        "styles.xml": f"<office:document-styles {declared}>{styles}</office:document-styles>",
    }
    entries = [("/", files["mimetype"]), ("content.xml", "text/xml"), ("styles.xml", "text/xml")]
    listed = "".join(
        f'<manifest:file-entry manifest:full-path="{path}" manifest:media-type="{media}"/>' for path, media in entries
    )
    manifest = f'<manifest:manifest xmlns:manifest="{OASIS}manifest:1.0" manifest:version="1.2">{listed}'
    files["META-INF/manifest.xml"] = f"{manifest}</manifest:manifest>"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path, ARCHIVE_DATE), content)
    return buffer.getvalue()


def content_of(saved: bytes | None) -> ElementTree.Element | None:
    """Return the content of a saved document, None if it cannot be read because it is being written."""
    try:
        with zipfile.ZipFile(io.BytesIO(saved or b"")) as archive:
            return ElementTree.fromstring(archive.read("content.xml"))
    except (zipfile.BadZipFile, KeyError, ElementTree.ParseError):
        return None


def cells_of(saved: bytes | None) -> dict[str, Cell]:
    """Return the non-empty cells of a spreadsheet's first table by name (``B3``)."""
    content = content_of(saved)
    table = None if content is None else content.find(".//table:table", SPACES)
    values: dict[str, Cell] = {}
    for number, row in enumerate(expand_repeats(table, "row", "rows") if table is not None else (), 1):
        for column, cell in enumerate(expand_repeats(row, "cell", "columns")):
            if (value := value_of(cell)) is not None and column < 26:
                values[f"{chr(ord('A') + column)}{number}"] = value
    return values


def expand_repeats(parent: ElementTree.Element, kind: str, several: str) -> Iterator[ElementTree.Element]:
    """Yield rows or cells, repeated ones repeatedly, up to :data:`MAX_CELLS`."""
    number = 0
    for child in parent.iterfind(f".//table:table-{kind}", SPACES):
        for _ in range(int(child.get(f"{{{SPACES['table']}}}number-{several}-repeated", "1"))):
            number += 1
            if number > MAX_CELLS:
                return
            yield child


def value_of(cell: ElementTree.Element) -> Cell | None:
    """Return a cell's number or text, None if it is empty."""
    number = cell.get(f"{{{SPACES['office']}}}value")
    if number is not None:
        return float(number)
    return "\n".join(paragraph_texts(cell)) or None


def paragraphs_of(saved: bytes | None) -> list[str]:
    """Return the paragraphs of a text document or of a presentation's slides."""
    content = content_of(saved)
    body = None if content is None else content.find("office:body", SPACES)
    return [] if body is None else paragraph_texts(body)


def paragraph_texts(parent: ElementTree.Element) -> list[str]:
    """Return the texts of the paragraphs in an element."""
    return ["".join(paragraph.itertext()) for paragraph in parent.iterfind(".//text:p", SPACES)]
