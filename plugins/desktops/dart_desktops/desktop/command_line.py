"""The command line of a sandbox: bubblewrap with new namespaces, and programs of the host read-only.

A sandbox has no network, sees no other process, and writes to memory only. Its server is passed by file descriptors, so
that it needs no folder of the host but /usr and parts of /etc. Packages of OSWorld's agents are a further one.
"""

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from dart_desktops.desktop import office_profile
from dart_desktops.desktop.guest import windows

PROGRAMS = ("bwrap", "Xvfb", "openbox", "dbus-daemon", "zenity", "mousepad", "pcmanfm", "galculator", "wmctrl", "xclip")
"""Programs that ``make demo-desktop`` installs."""
TRIAL = ("bwrap", "--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "true")
"""Command that makes an empty sandbox."""
ALLOW_SPACES = "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, or the container's security options)"
GUEST = PurePosixPath("/opt/desktop")
MODULES = PurePosixPath("/opt/python")
"""Folder of further Python modules for programs of the session; the server does not import them."""
FURTHER_PACKAGES = PurePosixPath("/opt/packages")
"""Packages of `.venv/osworld-guest`, which programs of OSWorld's agents import."""
PACKAGES = ("pymsgbox", "pyperclip", "pyscreeze", "pytweening")
"""Packages of this environment that agents' programs and the replacement of pyautogui import, a file each."""
REPLACEMENTS = ("pyautogui.py", "pyautogui_further.py")
"""Modules of the server's package that programs of the session import by their own names."""
SERVER = "dart_desktops.desktop.guest"
"""Package of the server, with the same name as on the host."""
HOME = "/home/user"
SYSTEM = (
    *("--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"),
    *(word for name in ("bin", "lib", "lib64", "sbin") for word in ("--symlink", f"usr/{name}", f"/{name}")),
)
"""Arguments for programs of the host and for the kernel's file systems."""
ETC = (
    "alternatives",
    "dconf",
    "fonts",
    "gtk-3.0",
    "ld.so.cache",
    "libreoffice",
    "localtime",
    "mime.types",
    "ssl/certs",
    "xdg",
)
"""Parts of /etc that programs need: no passwords, keys or configuration of services."""
ENVIRONMENT = {
    "PATH": "/opt/bin:/usr/local/bin:/usr/bin:/usr/games:/usr/sbin",
    "PYTHONPATH": f"{MODULES}:{FURTHER_PACKAGES}",
    "HOME": HOME,
    "USER": "user",
    "LANG": "C.UTF-8",
    "XDG_RUNTIME_DIR": "/run/user/1000",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus",
    "GDK_BACKEND": "x11",
    "GTK_CSD": "0",
    "GSK_RENDERER": "cairo",
    "GIO_USE_VFS": "local",
}
ACCOUNTS = {
    "/etc/passwd": b"user:x:1000:1000::/home/user:/bin/bash\n",
    "/etc/group": b"user:x:1000:\n",
    "/etc/hosts": b"127.0.0.1 localhost desktop\n",
    "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files\n",
    "/etc/machine-id": b"00000000000000000000000000000001\n",
}
"""Files of /etc for each sandbox; the machine id is constant, since nothing may depend on it."""
PROFILE = "--user-data-dir=$HOME/.config/google-chrome"
HIDDEN = ("/usr/bin/gpgconf", "/usr/bin/gpg", "/usr/bin/gpgsm")
"""Programs that are hidden: LibreOffice looks for keys with each of them, which takes a tenth of its start."""
VSCODE = PurePosixPath("/opt/vscode")
"""VS Code's server of `.venv/vscode`."""
CODE = f"""#!/bin/sh
[ -e {VSCODE} ] || {{ echo "VS Code is not installed: make osworld" >&2; exit 127; }}
exec /usr/bin/python3 -E -s {GUEST.joinpath(*SERVER.split("."))}/vscode.py "$@"
"""
CHROMIUM, BROWSER = Path("/usr/lib/chromium"), Path("/opt/google/chrome/chrome")
"""Folder of the host's browser, and its file in a sandbox."""
BROWSER_FLAGS = "/run/browser-flags"
"""File with further flags of the browser, one a line, if it exists."""
CHROME = f"""#!/bin/sh
if [ -r {BROWSER_FLAGS} ]; then
    while IFS= read -r flag; do set -- "$flag" "$@"; done <{BROWSER_FLAGS}
fi
export ACCESSIBILITY_ENABLED=1
exec {BROWSER} --no-sandbox --no-first-run {PROFILE} "$@"
"""
APT = b"""#!/bin/sh
for word; do
    case $word in
    install | update | -*) continue ;;
    sysstat) program=sar ;;
    *) program=$word ;;
    esac
    command -v "$program" >/dev/null || { echo "E: Unable to locate package $word" >&2; exit 100; }
done
"""
"""Succeeds if the packages are installed already: a sandbox has no network."""
SHIMS = {
    "/opt/bin/apt": APT,
    "/opt/bin/apt-get": APT,
    "/opt/bin/sudo": b'#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"\n',
    "/opt/bin/google-chrome": CHROME.encode(),
    "/opt/bin/code": CODE.encode(),
}
"""Programs of OSWorld's image by their names there; nothing needs another user in a sandbox."""
HOME_FILES = {
    "/opt/home/.config/gtk-3.0/settings.ini": b"""[Settings]
gtk-font-name=Sans 8
gtk-cursor-blink=false
gtk-enable-animations=false
gtk-double-click-time=250
gtk-overlay-scrolling=false
gtk-recent-files-enabled=false
""",
    "/opt/home/.gtkrc-2.0": b"""gtk-font-name="Sans 8"
gtk-cursor-blink=0
gtk-toolbar-style=0
""",
}
"""Initial files of each home. With a blinking caret, screens would depend on time."""
FRAMELESS = b"""<?xml version="1.0"?>
<openbox_config xmlns="http://openbox.org/3.4/rc"><applications>
<application type="normal"><decor>no</decor><maximized>yes</maximized></application>
<application type="dialog"><decor>no</decor></application>
</applications></openbox_config>
"""
"""Configuration of the window manager of a phone."""
WRITABLE = ("/tmp", "/run", "/var", "/dev/shm", HOME)


def command(files: Mapping[str, int], megabytes: int, refusals: int, packages: str = "", vscode: str = "") -> list[str]:
    """Return the command of a sandbox, without the program that it runs.

    ``files`` maps paths in it to file descriptors with their contents. Each writable folder holds at most
    ``megabytes``. ``refusals`` is the file descriptor of its system call filter. ``packages`` is a folder of the host
    with further Python packages, ``vscode`` one with VS Code's server.
    """
    arguments = ["bwrap", "--unshare-user", "--uid", "1000", "--gid", "1000", "--disable-userns"]
    arguments += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    arguments += ["--hostname", "desktop", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        arguments += ["--setenv", name, value]
    arguments += SYSTEM
    for folder in WRITABLE:
        arguments += ["--perms", "0755", "--size", str(megabytes * 2**20), "--tmpfs", folder]
    for folder in ("/var/tmp", "/run/user"):
        arguments += ["--dir", folder]
    arguments += ["--symlink", "/usr/bin/python3", "/opt/bin/python"]
    arguments += ["--symlink", "../usr/lib/os-release", "/etc/os-release"]
    arguments += browser_arguments()
    for path in filter(os.path.exists, HIDDEN):
        arguments += ["--ro-bind", "/dev/null", path]
    for name in ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for path in ("/var/lib/libreoffice", "/var/cache/fontconfig"):
        arguments += ["--ro-bind-try", path, path]
    if packages:
        arguments += ["--ro-bind", packages, str(FURTHER_PACKAGES)]
    if vscode:
        arguments += ["--ro-bind", vscode, str(VSCODE)]
    for path, descriptor in files.items():
        mode = ["--perms", "0755"] if path in SHIMS else []
        arguments += [*mode, "--ro-bind-data", str(descriptor), path]
    return [*arguments, "--seccomp", str(refusals), "--chdir", str(GUEST)]


def browser_arguments() -> list[str]:
    """Return the arguments that put the browser where Google Chrome is: tasks end it by its file's name, ``chrome``.

    Chromium names its processes after its file, whatever link it was started by, and finds its resources beside it.
    """
    arguments = ["--ro-bind-try", str(CHROMIUM / "chromium"), str(BROWSER)]
    for path in sorted(CHROMIUM.iterdir()) if CHROMIUM.is_dir() else []:
        arguments += ["--symlink", str(path), str(BROWSER.with_name(path.name))]
    return [*arguments, "--symlink", str(BROWSER), "/opt/bin/chrome"]


def own_files(guest: Mapping[str, bytes], packages: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the contents of a sandbox's files by path, of its server's modules and of the packages of programs."""
    folder = GUEST.joinpath(*SERVER.split("."))
    modules = {str(folder / name): content for name, content in guest.items()}
    imported = {str(MODULES / name): guest[name] for name in REPLACEMENTS if name in guest}
    imported |= {str(MODULES / f"{name}.py"): content for name, content in packages.items()}
    home = {**HOME_FILES, **{f"/opt/home/{path}": content for path, content in office_profile.profile_files().items()}}
    return {**ACCOUNTS, **home, **SHIMS, **modules, **imported, windows.FRAMELESS: FRAMELESS}
