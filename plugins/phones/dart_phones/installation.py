"""The programs of phones: jars that Maven has fetched, and what is built from them and from ``android/``."""

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from dart_streams.errors import ServiceUnavailable, UserError
from dart_streams.java import SHARED_JARS, find_java, jar_folder

SOURCES = Path(__file__).parent / "android"
ADVICE = "run `make phone`, in the repository"
NATIVE = "nativeruntime-dist-compat-*.jar"
UNUSED = re.compile(r"native/(mac|windows)/|fonts/NotoSansCJK")
"""Parts of the native runtime that are left out: each phone would unpack them, 120 MB of fonts and libraries."""
COMPILE_S = 300.0
COMPILER = ("-8", "-nowarn")
"""Java 8: with modules, the compiler refuses the packages of Java that Android's jar also has."""


@cache
def built_folder(jars_cache: Path = SHARED_JARS) -> Path:
    """Return the folder of what is built; another one for other jars or sources. It need not exist.

    A process keeps to what it has found first, also if sources change meanwhile.
    """
    sources = b"".join(path.read_bytes() for path in [*sorted(SOURCES.glob("*.java")), Path(__file__)])
    digest = hashlib.sha256(jar_folder("phone", jars_cache).name.encode() + sources).hexdigest()[:12]
    return jars_cache / f"phone-built-{digest}"


def ensure_built(jars_cache: Path = SHARED_JARS) -> Path:
    """Return the folder of what is built, and build it if it is missing; raise ServiceUnavailable without the jars."""
    folder, jars = built_folder(jars_cache), jar_folder("phone", jars_cache)
    if not jars.is_dir():
        raise ServiceUnavailable(f"no phones are installed here: {ADVICE}")
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=jars_cache, prefix="phone-") as partial:
            built = Path(partial) / "built"
            build(jars, built)
            try:
                built.rename(folder)
            except OSError:
                if not folder.is_dir():  # Another process may have built it meanwhile.
                    raise
    return folder


def build(jars: Path, folder: Path) -> None:
    """Compile the applications, and make jars of what Java cannot load as it is."""
    folder.mkdir()
    for archive in jars.glob("*.aar"):
        with zipfile.ZipFile(archive) as content:
            (folder / f"{archive.stem}.jar").write_bytes(content.read("classes.jar"))
    (folder / "native").mkdir()
    with zipfile.ZipFile(next(jars.glob("conscrypt-openjdk-uber-*.jar"))) as content:
        for name in content.namelist():
            if name.endswith(".so"):  # Unpacked by Java, it would need another mode, which a phone can't set.
                (folder / "native" / Path(name).name).write_bytes(content.read(name))
    for archive in jars.glob(NATIVE):
        copy_used_parts(archive, folder / archive.name)
    compiler = next(jars.glob("ecj-*.jar"))
    paths = ":".join(map(str, [*jars.glob("*.jar"), *folder.glob("*.jar")]))
    try:
        done = subprocess.run(
            [
                find_java(),
                "-jar",
                compiler,
                *COMPILER,
                "-d",
                folder / "classes",
                "-cp",
                paths,
                *sorted(SOURCES.glob("*.java")),
            ],
            capture_output=True,
            text=True,
            timeout=COMPILE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ServiceUnavailable(f"the phone's applications were not compiled within {COMPILE_S:g} s") from None
    if done.returncode != 0:
        raise ServiceUnavailable(f"the phone's applications cannot be compiled:\n{(done.stdout + done.stderr)[-2000:]}")


def copy_used_parts(archive: Path, target: Path) -> None:
    """Copy an archive without its unused parts."""
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as copy:
        for entry in source.infolist():
            if not UNUSED.match(entry.filename):
                copy.writestr(entry, source.read(entry))


def class_path(jars_cache: Path = SHARED_JARS) -> Iterator[Path]:
    """Yield the entries of the class path. Android comes last: its jar also has packages of Java."""
    built, jars = built_folder(jars_cache), jar_folder("phone", jars_cache)
    yield built / "classes"
    yield from sorted(built.glob("*.jar"))
    left_out = {path.name for path in built.glob("*.jar")}
    later = [path for path in sorted(jars.glob("*.jar")) if path.name not in left_out and not path.match("ecj-*.jar")]
    yield from sorted(later, key=lambda path: path.match("android-all-*.jar"))


def main() -> int:
    """Build what is missing; print ``built`` if anything was."""
    try:
        complete = built_folder().is_dir()
        ensure_built()
    except UserError as error:
        sys.stderr.write(f"\nerror: {error}\n")
        return error.exit_code
    sys.stdout.write("" if complete else "built")
    return 0


if __name__ == "__main__":
    sys.exit(main())
