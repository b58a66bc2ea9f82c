"""Draws the pictures of the documentation: ``python docs/pictures/draw.py`` writes the SVG files beside this one.

Each picture has a light background, so it looks the same on a light and on a dark page.
"""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

INK, PALE, PANEL = "#24292f", "#57606a", "#fbfbfa"
COLORS = {
    "env": ("#dbeafe", "#1d4ed8"),
    "rollout": ("#dcfce7", "#15803d"),
    "trainer": ("#fee2e2", "#b91c1c"),
    "curator": ("#fef3c7", "#b45309"),
    "recorder": ("#ede9fe", "#6d28d9"),
    "store": ("#e5e7eb", "#4b5563"),
    "plain": ("#ffffff", "#9ca3af"),
}
Point = tuple[float, float]


class Picture:
    """An SVG of ``width`` x ``height`` pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.size = (width, height)
        self.title = title
        self.parts: list[str] = []

    def text(self, x: float, y: float, text: str, size: int = 14, anchor: str = "middle", style: str = "") -> None:
        """Write a line, its baseline at ``y``."""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" {style}>{escape(text)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, kind: str, *lines: str) -> None:
        """Draw a box; its first line is bold."""
        fill, stroke = COLORS[kind]
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="{fill}" stroke="{stroke}" '
            'stroke-width="1.5"/>'
        )
        top = y + height / 2 - (len(lines) - 1) * 9 + 5
        for number, line in enumerate(lines):
            style = 'font-weight="600"' if number == 0 else f'fill="{PALE}"'
            self.text(x + width / 2, top + 18 * number, line, 15 if number == 0 else 12, style=style)

    def arrow(self, *points: Point, label: str = "", at: Point | None = None, dashed: bool = False) -> None:
        """Draw a line through the points with a head at the last; the label is centerd at ``at``."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.6"{dash} marker-end="url(#head)"/>'
        )
        if label:
            if at is None:
                (x1, y1), (x2, y2) = points[0], points[-1]
                at = ((x1 + x2) / 2, (y1 + y2) / 2 - 7)
            self.label(at, label)

    def label(self, at: Point, text: str) -> None:
        """Write a topic's name on a background of the panel's color."""
        width = len(text) * 7.9 + 8
        self.parts.append(
            f'<rect x="{at[0] - width / 2:g}" y="{at[1] - 13:g}" width="{width:g}" height="18" fill="{PANEL}"/>'
        )
        self.text(*at, text, 13, style='font-family="ui-monospace, monospace"')

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw a thin dashed line."""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="#9ca3af" stroke-dasharray="3 4"/>'
        )

    def svg(self) -> str:
        """Return the file's text."""
        width, height = self.size
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" role="img" font-family="system-ui, sans-serif" fill="{INK}">',
                f"<title>{escape(self.title)}</title>",
                '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
                f'orient="auto"><path d="M0 0 L10 5 L0 10 z" fill="{INK}"/></marker></defs>',
                f'<rect width="{width}" height="{height}" rx="12" fill="{PANEL}" stroke="#d0d7de"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


def draw_circle() -> Picture:
    """Draw the processes and the topics between them."""
    it = Picture(980, 640, "The circle: processes, and the topics between them")
    it.box(90, 40, 220, 66, "trainer", "trainer", "FSDP2")
    it.box(650, 40, 220, 66, "rollout", "rollout workers", "vLLM")
    it.box(650, 230, 220, 66, "env", "environment workers", "browsers")
    it.box(650, 420, 220, 66, "recorder", "recorder", "makes steps durable")
    it.box(650, 552, 220, 58, "store", "Cassandra", "steps and screenshots")
    it.parts.append(
        '<rect x="50" y="190" width="350" height="330" rx="10" fill="#fffbeb" stroke="#b45309" stroke-dasharray="6 4"/>'
    )
    it.text(66, 511, "curator: the data manager's agents", 13, "start", f'fill="{COLORS["curator"][1]}"')
    it.box(240, 232, 140, 50, "curator", "dispatch")
    it.box(240, 322, 140, 50, "curator", "budget")
    it.box(240, 412, 140, 50, "curator", "difficulty")
    it.box(70, 412, 130, 50, "curator", "groups")
    it.arrow((310, 73), (650, 73), label="weights", at=(545, 66))
    it.arrow((440, 73), (440, 165), (310, 165), (310, 232), dashed=True)
    it.arrow((700, 230), (700, 106), label="action-requests", at=(690, 172))
    it.arrow((830, 106), (830, 230), label="actions", at=(830, 172))
    it.arrow((760, 296), (760, 420), label="observations", at=(760, 362))
    it.arrow((380, 257), (650, 257), label="rollout-orders", at=(525, 250))
    it.arrow((650, 445), (380, 445), label="trajectories", at=(525, 438))
    it.arrow((470, 445), (470, 484), (135, 484), (135, 462))
    it.arrow((310, 412), (310, 372), label="task-difficulty", at=(310, 397))
    it.arrow((310, 322), (310, 282), label="rollout-budgets", at=(310, 307))
    it.arrow((135, 412), (135, 106), label="curated", at=(120, 172))
    it.arrow((135, 257), (240, 257), dashed=True)
    it.arrow((760, 486), (760, 552))
    it.text(772, 524, "step rows", 12, "start", f'fill="{PALE}"')
    it.arrow((870, 263), (925, 263), (925, 581), (870, 581))
    it.text(918, 402, "screenshots", 12, "end", f'fill="{PALE}"')
    it.text(70, 580, "Each arrow is a Kafka topic, but those into Cassandra.", 13, "start", f'fill="{PALE}"')
    it.text(70, 600, "No process calls another.", 13, "start", f'fill="{PALE}"')
    return it


Message = tuple[int, int, str, bool]


def draw_sequence(
    title: str, lanes: Sequence[tuple[str, str]], rows: Sequence[Message | tuple[int, str]], gap: int = 40
) -> Picture:
    """Draw a sequence: a row is a message (from, to, text, whether it is a topic) or an action (lane, text)."""
    spacing, left = 225, 120
    width, height = left * 2 + spacing * (len(lanes) - 1), 110 + gap * len(rows)
    it = Picture(width, height, title)
    where = [left + spacing * number for number in range(len(lanes))]
    for x, (name, kind) in zip(where, lanes, strict=True):
        it.line(x, 66, x, height - 24)
        it.box(x - 85, 22, 170, 42, kind, name)
    for number, row in enumerate(rows):
        y = 106 + gap * number
        if len(row) == 2:
            lane, text = row
            size = len(text) * 6.6 + 20
            kind = lanes[lane][1]
            it.parts.append(
                f'<rect x="{where[lane] - size / 2:g}" y="{y - 16:g}" width="{size:g}" height="26" rx="5" '
                f'fill="#ffffff" stroke="{COLORS[kind][1]}"/>'
            )
            it.text(where[lane], y + 2, text, 12.5)  # type: ignore[arg-type]
            continue
        start, end, text, topic = row
        direction = 1 if end > start else -1
        it.arrow((where[start], y), (where[end] - 3 * direction, y), dashed=not topic)
        middle = (where[start] + where[end]) / 2
        it.label((middle, y - 6), text) if topic else it.text(middle, y - 6, text, 12.5)  # type: ignore[arg-type]
    return it


def draw_step() -> Picture:
    """Draw the life of one step."""
    return draw_sequence(
        "The life of one step",
        [
            ("rollout worker", "rollout"),
            ("env worker", "env"),
            ("Cassandra", "store"),
            ("recorder", "recorder"),
            ("curator", "curator"),
        ],
        [
            (1, "a new screen"),
            (1, 2, "screenshot, by sha256", False),
            (1, 0, "action-requests", True),
            (2, 0, "screenshots of the prompt", False),
            (0, "generate"),
            (0, 1, "actions", True),
            (1, "execute the action, take the next screen"),
            (1, 3, "observations", True),
            (3, 2, "step row", False),
            (3, "the last step is durable"),
            (3, 4, "trajectories", True),
        ],
    )


def draw_switch() -> Picture:
    """Draw a weight switch of two rollout workers, one at a time."""
    return draw_sequence(
        "A weight switch",
        [
            ("trainer", "trainer"),
            ("weights at a URI", "store"),
            ("rollout worker 0", "rollout"),
            ("rollout worker 1", "rollout"),
        ],
        [
            (0, 1, "files of version 8, synced", False),
            (0, 2, "weights: version 8, sha256", True),
            (1, 2, "fetch, verify the sha256", False),
            (2, "load beside version 7"),
            (2, "pause, exchange, resume"),
            (2, 3, "weights-serving: 8", True),
            (3, "its turn: the same"),
            (3, 2, "weights-serving: 8", True),
        ],
    )


def draw_floors() -> Picture:
    """Draw the floors of the code: imports go down only."""
    rows = [
        ("plain", "examples", "programs to run and change"),
        ("plain", "benchmarks", "measurements; outside of the wheel"),
        ("plain", "plugins", "desktops, phones, adapters, recipes, data: entry points"),
        ("plain", "console", "runs, views, launch, the command line"),
        ("env", "workers · trainer", "the processes of the circle; none imports another"),
        ("curator", "dart_streams/curation · policy", "the data manager: pure reducers; the model side: torch"),
        ("recorder", "dart_streams/bus · store · episodes", "clients of Kafka and Cassandra; the life of an episode"),
        ("trainer", "dart_streams/connection · telemetry", "TLS, login, retries; logs, metrics, spans"),
        ("store", "dart_streams/config", "one strict TOML file, and the task sets"),
        ("store", "dart_streams/actions · deadline · errors · …", "values and rules without dependencies"),
        ("rollout", "topics", "the contract: events, topics, legal transitions"),
    ]
    it = Picture(900, 70 + 42 * len(rows), "The floors of the code")
    for number, (kind, name, what) in enumerate(rows):
        y = 24 + 42 * number
        it.box(90, y, 400, 36, kind)
        it.text(290, y + 23, name, 13, style='font-weight="600"')
        it.text(508, y + 23, what, 13, "start", f'fill="{PALE}"')
    it.arrow((52, 40), (52, 24 + 42 * len(rows) - 12))
    it.text(52, 50 + 42 * len(rows), "imports go down only", 13, "start", f'fill="{PALE}"')
    return it


def draw_windows() -> Picture:
    """Draw the screenshots that each step's prompt shows, and the rows in which the model reads them."""
    it = Picture(960, 400, "Screenshots in the prompts of eight steps, with a sliding window and with blocks")
    steps, side = 8, 32
    windows = (("sliding window: 3 screenshots", 1, 3), ("blocks: 2 to 4 screenshots", 3, 4))
    for number, (name, block, most) in enumerate(windows):
        first = [-(-max(0, step + 1 - most) // block) * block for step in range(steps)]
        left = 90 + 480 * number
        it.text(left - 50, 34, name, 16, "start", 'font-weight="600"')
        it.text(left - 50, 54, "step, and the screenshots in its prompt", 12, "start", f'fill="{PALE}"')
        rows = [step for step in range(steps) if step + 1 == steps or first[step + 1] != first[step]]
        for step in range(steps):
            top = 70 + step * side
            it.text(left - 16, top + 19, str(step), 13, "end")
            for screen in range(first[step], step + 1):
                it.box(left + screen * side, top, side - 5, side - 5, "rollout" if step in rows else "plain")
        read = sum(step + 1 - first[step] for step in rows)
        it.text(left - 50, 352, f"{len(rows)} rows (green) read {read} screenshots;", 14, "start")
        it.text(left - 50, 372, f"a row a step reads {sum(s + 1 - f for s, f in enumerate(first))}", 14, "start")
    return it


PICTURES: dict[str, Callable[[], Picture]] = {
    "circle.svg": draw_circle,
    "step.svg": draw_step,
    "weight-switch.svg": draw_switch,
    "floors.svg": draw_floors,
    "windows.svg": draw_windows,
}


def main() -> None:
    """Write all pictures."""
    for name, draw in PICTURES.items():
        (Path(__file__).parent / name).write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
