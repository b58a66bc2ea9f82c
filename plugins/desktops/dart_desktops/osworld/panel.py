"""Panel, dock and picture of OSWorld's image: by tint2 a bar with the clock, and icons that start applications."""

import struct
import zlib
from typing import NamedTuple

from dart_desktops.desktop.command_line import VSCODE
from dart_desktops.desktop.guest.framebuffer import SIGNATURE, png_chunk

WALLPAPER = "/home/user/.local/share/backgrounds/stripes.png"
"""Picture behind the windows: OSWorld's image has one, and some tasks replace it."""
WALLPAPER_PX, STRIPE_PX = 480, 24
SHOW_WALLPAPER = f"gsettings set org.gnome.desktop.background picture-uri file://{WALLPAPER}"
BAR_PX, DOCK_PX, ICON_PX = 27, 68, 48
UP_POLLS = 100
"""Maximum number of looks for the two windows, 0.3 s apart, as each costs CPU time."""
HICOLOR, ADWAITA = "/usr/share/icons/hicolor/48x48/apps", "/usr/share/icons/Adwaita/48x48/legacy"


class DockIcon(NamedTuple):
    """An icon of the dock with the command that it starts, left out where the icon's file is missing."""

    label: str
    command: str
    icon: str


ICONS = (
    DockIcon("Chrome", "google-chrome", f"{HICOLOR}/chromium.png"),
    DockIcon("Thunderbird", "thunderbird", f"{HICOLOR}/thunderbird.png"),
    DockIcon("VLC", "vlc", f"{HICOLOR}/vlc.png"),
    DockIcon("Writer", "libreoffice --writer", f"{HICOLOR}/libreoffice-writer.png"),
    DockIcon("Calc", "libreoffice --calc", f"{HICOLOR}/libreoffice-calc.png"),
    DockIcon("Impress", "libreoffice --impress", f"{HICOLOR}/libreoffice-impress.png"),
    DockIcon("GIMP", "gimp", f"{HICOLOR}/gimp.png"),
    DockIcon("Files", "pcmanfm", f"{ADWAITA}/system-file-manager.png"),
    DockIcon("Code", "code", f"{VSCODE}/resources/server/code-192.png"),
    DockIcon("Terminal", "gnome-terminal", f"{ADWAITA}/utilities-terminal.png"),
)
"""Files of icons: tint2 takes four times the CPU time to find icons by names."""
COMMON = """border_width = 0
border_color = #000000 0
background_color = {color} 100
panel_background_id = 1
panel_items = {items}
panel_position = {position}
panel_size = {size}
panel_window_name = {name}
panel_layer = normal
strut_policy = follow_size
wm_menu = 0
"""
BAR = """font_shadow = 0
time1_format = %b %-d  %H:%M
time1_font = Sans Bold 9
clock_font_color = #ffffff 100
"""
DOCK = f"""panel_padding = 4 8 6
launcher_padding = 4 4 10
launcher_icon_size = {ICON_PX}
launcher_tooltip = 0
startup_notifications = 0
"""
SCRIPT = """
set -e
command -v tint2 >/dev/null || exit 0
mkdir -p ~/.config/tint2
cd ~/.config/tint2
cat >bar <<'END'
{bar}END
cat >dock <<'END'
{dock}END
offer() {{
    [ -e "$3" ] || return 0
    printf '[Desktop Entry]\\nType=Application\\nName=%s\\nExec=%s\\nIcon=%s\\n' "$@" >"$1.desktop"
    echo "launcher_item_app = $PWD/$1.desktop" >>dock
}}
{offers}
cd
for name in bar dock; do setsid tint2 -c ~/.config/tint2/$name </dev/null >/dev/null 2>&1 & done
looks=0
until [ "$(wmctrl -lx | grep -c tint2.Tint2)" = 2 ]; do
    looks=$((looks + 1))
    [ $looks -lt {polls} ] || exit 1
    sleep 0.3
done
"""


def start_script(width: int, height: int) -> str:
    """Return the shell script that starts both on a screen of this size, nothing where tint2 is not installed."""
    bar = COMMON.format(
        color="#1d1d1d", items="FCF", position="top center horizontal", size=f"{width} {BAR_PX}", name="bar"
    )
    dock = COMMON.format(
        color="#2b2429", items="L", position="bottom left vertical", size=f"{height - BAR_PX} {DOCK_PX}", name="dock"
    )
    offers = "\n".join(f"offer {icon.label} '{icon.command}' {icon.icon}" for icon in ICONS)
    return SCRIPT.format(bar=bar + BAR, dock=dock + DOCK, offers=offers, polls=UP_POLLS)


def wallpaper_png() -> bytes:
    """Return a PNG of diagonal stripes, which resembles no photograph."""
    side = range(WALLPAPER_PX)
    rows = b"".join(b"\0" + bytes(200 if (row + column) // STRIPE_PX % 2 else 60 for column in side) for row in side)
    header = struct.pack(">IIBBBBB", WALLPAPER_PX, WALLPAPER_PX, 8, 0, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")
    return SIGNATURE + b"".join(png_chunk(kind, content) for kind, content in parts)
