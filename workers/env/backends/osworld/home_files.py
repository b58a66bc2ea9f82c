"""What OSWorld's own image has in its home, and a fresh desktop of ours has not."""

from workers.env.backends.desktop import office_profile
from workers.env.backends.desktop.command_line import HOME
from workers.env.backends.osworld.machine import Machine
from workers.env.environment import EnvironmentFault

FILES = {
    "/home/user/.config/vlc/vlcrc": b"[core]\n",
    "/home/user/.config/vlc/vlc-qt-interface.conf": b"[General]\nIsFirstRun=0\n",
    "/home/user/.config/gtk-3.0/settings.ini": (
        b"[Settings]\ngtk-cursor-blink=false\ngtk-enable-animations=false\ngtk-recent-files-enabled=true\n"
    ),
    f"{HOME}/{office_profile.FOLDER}/registrymodifications.xcu": office_profile.registry_xml(
        *office_profile.SETTINGS,
        ("Setup/Product", "ooSetupLastVersion", "7.4"),
        ("Office.Impress/Misc/Start", "AutoPilot", "false"),
    ),
}
"""VLC's settings are judged though it was never started, and its first start would ask about privacy."""
TERMINAL_KEY = """
set -e
mkdir -p ~/.config/openbox
key='<keybind key="C-A-t"><action name="Execute"><command>gnome-terminal</command></action></keybind>'
sed "s#</keyboard>#$key</keyboard>#" /etc/xdg/openbox/rc.xml >~/.config/openbox/rc.xml
openbox --reconfigure
"""
"""Opens a terminal by the keys that open one there."""


async def prepare(machine: Machine) -> None:
    """Give a fresh desktop those files and that key; raise EnvironmentFault if it does not take them."""
    for path, content in FILES.items():
        await machine.upload(path, content)
    ended = await machine.execute(TERMINAL_KEY, shell=True)
    if ended["returncode"]:
        raise EnvironmentFault(f"the desktop takes no key for a terminal: {ended['error'][-200:].strip()}")
