"""Writer and reader of small OpenDocument files (OASIS OpenDocument 1.2)."""

import io
import zipfile
from collections.abc import Iterable, Iterator, Sequence
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
ROW, PARAGRAPH = f"{{{SPACES['table']}}}table-row", f"{{{SPACES['text']}}}p"
SAVED_BYTES = XML_BYTES = 2**20
"""Maximum sizes of a saved document and of its expanded XML; those of tasks have a hundredth of them."""
MAX_ROWS, COLUMNS = 1000, 26
"""Rows and columns that are read: the last empty ones of a sheet are repeated a million times."""
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
    """Return the content of a saved document, None if it is no document or larger than :data:`XML_BYTES`.

    The file is the policy's: whatever the libraries raise is a fault of the file, and the task is not solved.
    """
    if saved is None or len(saved) > SAVED_BYTES:
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(saved)) as archive:
            if archive.getinfo("content.xml").compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                return None  # Of others, zipfile does not bound what it expands.
            with archive.open("content.xml") as file:
                return parse_bounded(file.read(XML_BYTES + 1))
    except Exception:  # noqa: BLE001 - zipfile, zlib and expat raise a dozen kinds
        return None


class TreeWithoutEntities(ElementTree.TreeBuilder):
    """Refuses a document type, which declares entities that expand."""

    def doctype(self, name: str, *_: object) -> None:
        """Raise ValueError."""
        raise ValueError(f"it declares a document type, {name}")


def parse_bounded(xml: bytes | str, limit: int = XML_BYTES) -> ElementTree.Element:
    """Parse XML from a sandbox; raise ValueError if it is longer than ``limit``, ParseError if it is no XML."""
    if len(xml) > limit:
        raise ValueError(f"it is longer than {limit} bytes")
    return ElementTree.fromstring(xml, ElementTree.XMLParser(target=TreeWithoutEntities()))


def cells_of(saved: bytes | None) -> dict[str, Cell]:
    """Return the non-empty cells of a spreadsheet's first table by name (``B3``); empty if a number is malformed."""
    content = content_of(saved)
    table = None if content is None else content.find(".//table:table", SPACES)
    values: dict[str, Cell] = {}
    try:
        for rows, row in runs_of(() if table is None else table.iter(ROW), "rows", MAX_ROWS):
            cells: dict[str, Cell] = {}
            for columns, cell in runs_of(row.iterfind("table:table-cell", SPACES), "columns", COLUMNS):
                if (value := value_of(cell)) is not None:
                    cells.update((chr(ord("A") + column), value) for column in columns)
            values.update((f"{column}{number + 1}", value) for number in rows for column, value in cells.items())
    except ValueError:
        return {}
    return values


def runs_of(
    elements: Iterable[ElementTree.Element], several: str, limit: int
) -> Iterator[tuple[range, ElementTree.Element]]:
    """Yield rows or cells, each with the numbers that it stands for, below a limit; raise ValueError for no number."""
    start = 0
    for element in elements:
        end = start + max(1, int(element.get(f"{{{SPACES['table']}}}number-{several}-repeated", "1")))
        yield range(start, min(end, limit)), element
        if (start := end) >= limit:
            return


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
    """Return the texts of the outermost paragraphs in an element; each element is visited once."""
    texts, left = [], [parent]
    while left:
        element = left.pop()
        if element.tag == PARAGRAPH:
            texts.append("".join(element.itertext()))
        else:
            left.extend(reversed(element))
    return texts
