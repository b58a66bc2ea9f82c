"""What OSWorld's own image has in its home, and a fresh desktop of ours has not."""

from workers.env.osworld.machine import Machine

FILES = {
    "/home/user/.config/vlc/vlcrc": b"[core]\n",
    "/home/user/.config/vlc/vlc-qt-interface.conf": b"[General]\nIsFirstRun=0\n",
    "/home/user/.config/gtk-3.0/settings.ini": (
        b"[Settings]\ngtk-cursor-blink=false\ngtk-enable-animations=false\ngtk-recent-files-enabled=true\n"
    ),
    "/home/user/.config/libreoffice/4/user/registrymodifications.xcu": b"""<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry" xmlns:xs="http://www.w3.org/2001/XMLSchema">
<item oor:path="/org.openoffice.Office.Common/Save/Document"><prop oor:name="WarnAlienFormat" oor:op="fuse">
<value>false</value></prop></item>
<item oor:path="/org.openoffice.Office.Common/Misc"><prop oor:name="ShowTipOfTheDay" oor:op="fuse">
<value>false</value></prop></item>
<item oor:path="/org.openoffice.Setup/Product"><prop oor:name="ooSetupLastVersion" oor:op="fuse">
<value>7.4</value></prop></item>
<item oor:path="/org.openoffice.Office.Impress/Misc/Start"><prop oor:name="AutoPilot" oor:op="fuse">
<value>false</value></prop></item>
</oor:items>
""",
}
"""VLC's settings are judged though it was never started, and its first start would ask about privacy."""


async def prepare(machine: Machine) -> None:
    """Give a fresh desktop those files; raise EnvironmentFault if it does not take them."""
    for path, content in FILES.items():
        await machine.upload(path, content)
