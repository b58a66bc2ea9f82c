"""Placeholders of the browser's history, and of the profiles of Thunderbird."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from dart_desktops.osworld.placeholders.documents import run_quietly
from dart_desktops.osworld.placeholders.request import FileRequest

BROWSER_S = 60.0
PROFILE = ".thunderbird/t5q2a5hp.default-release"
"""Folder of the profile, which the tasks name."""
PROFILES = """[Profile0]
Name=default-release
IsRelative=1
Path=t5q2a5hp.default-release
Default=1

[General]
StartWithLastProfile=1
Version=2
"""
ADDRESS = "anonym-x2024@outlook.com"
PREFERENCES: dict[str, str | int | bool] = {
    "app.donation.eoy.version.viewed": 999,
    "app.update.enabled": False,
    "browser.shell.checkDefaultClient": False,
    "datareporting.policy.bypassNotification": True,
    "mail.rights.version": 1,
    "mail.shell.checkDefaultClient": False,
    "mail.spotlight.firstRunDone": True,
    "mail.winsearch.firstRunDone": True,
    "mailnews.start_page.enabled": False,
    "toolkit.telemetry.reportingpolicy.firstRun": False,
}
"""Preferences of any profile: no dialogs of a first start."""
ACCOUNT: dict[str, str | int | bool] = {
    "mail.account.account1.identities": "id1",
    "mail.account.account1.server": "server1",
    "mail.account.account2.server": "server2",
    "mail.account.lastKey": 2,
    "mail.accountmanager.accounts": "account1,account2",
    "mail.accountmanager.defaultaccount": "account1",
    "mail.accountmanager.localfoldersserver": "server2",
    "mail.identity.id1.fullName": "Anonym Tester",
    "mail.identity.id1.smtpServer": "smtp1",
    "mail.identity.id1.useremail": ADDRESS,
    "mail.identity.id1.valid": True,
    "mail.server.server1.check_new_mail": False,
    "mail.server.server1.directory-rel": "[ProfD]ImapMail/outlook.office365.com",
    "mail.server.server1.hostname": "outlook.office365.com",
    "mail.server.server1.login_at_startup": False,
    "mail.server.server1.name": ADDRESS,
    "mail.server.server1.offline_download": False,
    "mail.server.server1.port": 993,
    "mail.server.server1.socketType": 3,
    "mail.server.server1.type": "imap",
    "mail.server.server1.userName": ADDRESS,
    "mail.server.server2.directory-rel": "[ProfD]Mail/Local Folders",
    "mail.server.server2.hostname": "Local Folders",
    "mail.server.server2.name": "Local Folders",
    "mail.server.server2.type": "none",
    "mail.server.server2.userName": "nobody",
    "mail.smtpserver.smtp1.hostname": "smtp.office365.com",
    "mail.smtpserver.smtp1.username": ADDRESS,
    "mail.smtpservers": "smtp1",
}
"""Preferences of the account whose mail the tasks read, and of the local folders."""
FOLDERS = ("Bills", "Notes", "daily", "Trash")
FILTERS = 'version="9"\nlogging="no"\n'


def write_history(path: Path, _: FileRequest) -> None:
    """Write the history of a browser that was never used, by the browser that is installed."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        profile = Path(name)
        command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        run_quietly([*command, "--dump-dom", "about:blank"], profile, BROWSER_S)
        shutil.copyfile(profile / "Default/History", path)


def fill_mail_profile(folder: Path, request: FileRequest) -> None:
    """Write a profile of Thunderbird, with an account and its mail unless the file's name says blank."""
    profile = folder / PROFILE
    profile.mkdir(parents=True)
    (folder / ".thunderbird/profiles.ini").write_text(PROFILES, encoding="utf-8")
    blank = "blank" in Path(request.path).name
    (profile / "prefs.js").write_text(preference_lines({**PREFERENCES, **({} if blank else ACCOUNT)}), encoding="utf-8")
    (profile / "xulstore.json").write_text("{}\n", encoding="utf-8")
    if blank:
        return
    inbox, local = profile / "ImapMail/outlook.office365.com", profile / "Mail/Local Folders"
    for place in (inbox, local):
        place.mkdir(parents=True)
        (place / "msgFilterRules.dat").write_text(FILTERS, encoding="utf-8")
    (inbox / "INBOX").write_text(mailbox_text(request), encoding="utf-8")
    for name in FOLDERS:
        (local / name).write_text("" if name == "Trash" else mailbox_text(request), encoding="utf-8")


def preference_lines(values: dict[str, str | int | bool]) -> str:
    """Return the text of Thunderbird's preferences."""

    def quote_value(value: str | int | bool) -> str:
        return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')

    return "".join(f'user_pref("{name}", {quote_value(value)});\n' for name, value in sorted(values.items()))


def mailbox_text(request: FileRequest) -> str:
    """Return a folder of mail, with a message for each line."""
    messages = []
    for day, line in enumerate(request.lines, 1):
        head = f"From: Ann <ann@example.org>\nTo: {ADDRESS}\nSubject: {line}\n"
        date = f"Date: Mon, {day:02} Jan 2024 12:00:00 +0000\nMessage-ID: <{day}@example.org>\n"
        messages.append(f"From - Mon Jan {day:02} 12:00:00 2024\nX-Mozilla-Status: 0000\n{head}{date}\n{line}\n\n")
    return "".join(messages)


WRITERS: dict[str, Callable[[Path, FileRequest], None]] = {".sqlite": write_history}
