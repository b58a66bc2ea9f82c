"""LibreOffice's profile in each home, which makes screens independent of time and shortens its start."""

import re
from pathlib import Path

FOLDER = ".config/libreoffice/4/user"
VERSION = Path("/usr/lib/libreoffice/program/versionrc")
SETTINGS = (
    ("Setup/L10N", "ooLocale", "en-US"),
    ("Setup/Office", "ooSetupInstCompleted", "true"),
    ("Setup/Product", "LastTimeDonateShown", "4102444800"),
    ("Setup/Product", "LastTimeGetInvolvedShown", "4102444800"),
    ("Office.Common/Misc", "FirstRun", "false"),
    ("Office.Common/Misc", "ShowTipOfTheDay", "false"),
    ("Office.Common/Save/Document", "WarnAlienFormat", "false"),
    ("Office.Common/Save/Document", "GenerateThumbnail", "false"),
    ("Office.Recovery/AutoSave", "Enabled", "false"),
    ("Office.Linguistic/SpellChecking", "IsSpellAuto", "false"),
)
"""Paths in its registry, names and values: no tips, no questions (it asks for donations in 2100), and nothing that it
saves or underlines later."""


def profile_files(version: Path = VERSION) -> dict[str, bytes]:
    """Return the profile's files by path in the home."""
    contents = {f"{FOLDER}/registrymodifications.xcu": registry_xml(*SETTINGS)}
    if version.exists() and (build := re.search(r"^buildid=(.+)$", version.read_text(encoding="utf-8"), re.MULTILINE)):
        # After a change of the build it looks for extensions, and restarts.
        contents[f"{FOLDER}/extensions/buildid"] = build[1].encode()
    return contents


def registry_xml(*settings: tuple[str, str, str]) -> bytes:
    """Return LibreOffice's settings file, each setting with its path, name and value."""
    items = "".join(
        f'<item oor:path="/org.openoffice.{path}"><prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop>'
        "</item>"
        for path, name, value in settings
    )
    space = 'xmlns:oor="http://openoffice.org/2001/registry"'
    return f'<?xml version="1.0" encoding="UTF-8"?><oor:items {space}>{items}</oor:items>'.encode()
