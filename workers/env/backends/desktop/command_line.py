"""The command line of a sandbox: bubblewrap with namespaces of its own, and of the host nothing but programs to read.

It has no network and no route, sees no other process, and writes to memory only. The programs that serve it are handed
over by file descriptors, so that it needs no folder of the host but /usr and some of /etc.
"""

import os
from collections.abc import Mapping
from pathlib import PurePosixPath

from workers.env.backends.desktop import office_profile

PROGRAMS = ("bwrap", "Xvfb", "openbox", "dbus-daemon", "zenity", "mousepad", "pcmanfm", "galculator", "wmctrl")
"""What ``make demo-desktop`` installs, as far as a program says it."""
TRIAL = ("bwrap", "--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "true")
"""Makes a sandbox and does nothing in it."""
GUEST = PurePosixPath("/opt/desktop")
MODULES = PurePosixPath("/opt/python")
"""What programs of the session import beside the system's modules; the server does not."""
SERVER = "workers.env.backends.desktop.guest"
"""The package that serves it, by the same name as on the host."""
HOME = "/home/user"
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
"""What programs need of /etc; no passwords, keys or configuration of services."""
ENVIRONMENT = {
    "PATH": "/opt/bin:/usr/local/bin:/usr/bin:/usr/games:/usr/sbin",
    "PYTHONPATH": str(MODULES),
    "HOME": HOME,
    "USER": "user",
    "LANG": "C.UTF-8",
    "XDG_RUNTIME_DIR": "/run/user/1000",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus",
    "GDK_BACKEND": "x11",
    "GTK_CSD": "0",
    "GIO_USE_VFS": "local",
}
ACCOUNTS = {
    "/etc/passwd": b"user:x:1000:1000::/home/user:/bin/bash\n",
    "/etc/group": b"user:x:1000:\n",
    "/etc/hosts": b"127.0.0.1 localhost desktop\n",
    "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files\n",
    "/etc/machine-id": b"00000000000000000000000000000001\n",
}
"""Files of /etc that are the sandbox's own; the machine id is the same everywhere, for nothing may depend on it."""
PROFILE = "--user-data-dir=$HOME/.config/google-chrome"
HIDDEN = ("/usr/bin/gpgconf", "/usr/bin/gpg", "/usr/bin/gpgsm")
"""Programs that are not there inside. LibreOffice starts each of these in every start, a tenth of what that costs, to
learn of keys that nobody has."""
SHIMS = {
    "/opt/bin/sudo": b'#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"\n',
    "/opt/bin/google-chrome": f'#!/bin/sh\nexec /opt/bin/chrome --no-sandbox --no-first-run {PROFILE} "$@"\n'.encode(),
}
"""Programs of OSWorld's image by their names there; nothing needs another user, for the desktop is the sandbox."""
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
"""Files of the home that each session begins with. A caret that blinks would make a screen depend on its time."""
WRITABLE = ("/tmp", "/run", "/var", "/dev/shm", HOME)


def command(files: Mapping[str, int], megabytes: int, refusals: int) -> list[str]:
    """Return the command of a sandbox, without the program that it runs.

    ``files`` are paths in it, and the file descriptors with their contents. Each writable folder holds ``megabytes`` at
    most. ``refusals`` is the file descriptor of its filter of system calls.
    """
    arguments = ["bwrap", "--unshare-user", "--uid", "1000", "--gid", "1000", "--disable-userns"]
    arguments += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    arguments += ["--hostname", "desktop", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        arguments += ["--setenv", name, value]
    arguments += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib64", "sbin"):
        arguments += ["--symlink", f"usr/{name}", f"/{name}"]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for folder in WRITABLE:
        arguments += ["--perms", "0755", "--size", str(megabytes * 2**20), "--tmpfs", folder]
    for folder in ("/var/tmp", "/run/user"):
        arguments += ["--dir", folder]
    arguments += ["--symlink", "/usr/bin/python3", "/opt/bin/python"]
    # Tasks end the browser by this name.
    arguments += ["--symlink", "/usr/lib/chromium/chromium", "/opt/bin/chrome"]
    for path in filter(os.path.exists, HIDDEN):
        arguments += ["--ro-bind", "/dev/null", path]
    for name in ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for path in ("/var/lib/libreoffice", "/var/cache/fontconfig"):
        arguments += ["--ro-bind-try", path, path]
    for path, descriptor in files.items():
        mode = ["--perms", "0755"] if path in SHIMS else []
        arguments += [*mode, "--ro-bind-data", str(descriptor), path]
    return [*arguments, "--seccomp", str(refusals), "--chdir", str(GUEST)]


def own_files(guest: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the contents of all files that a sandbox is given, by path; ``guest`` are the modules that serve it."""
    folder = GUEST.joinpath(*SERVER.split("."))
    modules = {str(folder / name): content for name, content in guest.items()}
    stand_ins = {str(MODULES / name): guest[name] for name in ("pyautogui.py",) if name in guest}
    home = {**HOME_FILES, **{f"/opt/home/{path}": content for path, content in office_profile.profile_files().items()}}
    return {**ACCOUNTS, **home, **SHIMS, **modules, **stand_ins}
