"""The check of ``dart-streams doctor`` for phones."""

from console.cli.doctor_checks import Finding
from dart_phones import installation
from dart_streams.config import Config
from dart_streams.java import SHARED_JARS, jar_folder


def check_phone(config: Config) -> Finding:
    """Check the jars and the built applications of phones."""
    if config.env.backend != "phone":
        return Finding("phone", "ok", f"not needed by environment {config.env.backend!r}")
    if not (folder := jar_folder("phone", SHARED_JARS)).is_dir():
        return Finding("phone", "fail", f"{folder} is missing", installation.ADVICE)
    if not (folder := installation.built_folder()).is_dir():
        return Finding("phone", "warn", f"{folder} is missing: the first start builds it", installation.ADVICE)
    return Finding("phone", "ok", str(folder))
