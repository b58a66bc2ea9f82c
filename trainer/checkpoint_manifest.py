"""Manifest of a checkpoint: size and SHA-256 of every file, written last to detect damage before use."""

import hashlib
from pathlib import Path

import msgspec

from dart_streams.config.text import MALFORMED
from dart_streams.policy.weights import digest_file

MANIFEST = "manifest.json"


class CheckpointFile(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint file: name, size in bytes, SHA-256 (hex)."""

    name: str
    size: int
    sha256: str

    @classmethod
    def of(cls, file: Path) -> "CheckpointFile":
        """Return the entry of ``file``; raise OSError if it cannot be read."""
        return cls(name=file.name, size=file.stat().st_size, sha256=digest_file(file))

    def damage_in(self, folder: Path) -> str:
        """Return the fault of this file in ``folder``; empty if it is intact."""
        file = folder / self.name
        try:
            size = file.stat().st_size
            if size != self.size:
                return f"{self.name} is torn: {size} of {self.size} bytes"
            sha256 = digest_file(file)
        except FileNotFoundError:
            return f"{self.name} is missing"
        except OSError as error:
            return f"{self.name} can't be read ({error.strerror or error})"
        return "" if sha256 == self.sha256 else f"{self.name} has changed: its SHA-256 is {sha256}, not {self.sha256}"


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a checkpoint and the digest of the frozen weights; ``sha256`` covers the manifest itself."""

    files: tuple[CheckpointFile, ...]
    frozen_sha256: str = ""
    sha256: str = ""

    def encoded(self) -> bytes:
        """Return the manifest as JSON, with its digest."""
        bare = msgspec.json.encode(msgspec.structs.replace(self, sha256=""))
        own = msgspec.structs.replace(self, sha256=hashlib.sha256(bare).hexdigest())
        return msgspec.json.format(msgspec.json.encode(own))


def read(folder: Path) -> CheckpointManifest | str:
    """Return the manifest of the checkpoint in ``folder``, or its fault in words."""
    try:
        data = (folder / MANIFEST).read_bytes()
        manifest = msgspec.json.decode(data, type=CheckpointManifest)
    except FileNotFoundError:
        return f"{MANIFEST} is missing: removed, or written by an older dart_streams"
    except OSError as error:
        return f"{MANIFEST} can't be read ({error.strerror or error})"
    except MALFORMED as error:
        return f"{MANIFEST} is torn ({error})"
    return manifest if data == manifest.encoded() else f"{MANIFEST} has changed: its own SHA-256 differs"
