"""What a checkpoint consists of: every file by size and SHA-256, written last, so that damage is found before use."""

import hashlib
from pathlib import Path

import msgspec

from dart_streams.policy.weights import digest_file

MANIFEST = "manifest.json"


class CheckpointFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a checkpoint: its name, its size in bytes, its SHA-256 (hex)."""

    name: str
    size: int
    sha256: str

    @classmethod
    def of(cls, file: Path) -> "CheckpointFile":
        """Return what there is of a file now; raise OSError if it can't be read."""
        return cls(name=file.name, size=file.stat().st_size, sha256=digest_file(file))

    def damage_in(self, folder: Path) -> str:
        """Return what is wrong with this file in ``folder``, empty if nothing is."""
        file = folder / self.name
        try:
            size = file.stat().st_size
            if size != self.size:
                return f"{self.name} is torn: {size} of {self.size} bytes"
            found = digest_file(file)
        except FileNotFoundError:
            return f"{self.name} is missing"
        except OSError as error:
            return f"{self.name} can't be read ({error.strerror or error})"
        return "" if found == self.sha256 else f"{self.name} was changed: its SHA-256 is {found}, not {self.sha256}"


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a checkpoint; ``frozen_sha256`` is of the weights that are used beside them and not among them.

    ``sha256`` is of the manifest itself, without it.
    """

    files: tuple[CheckpointFile, ...]
    frozen_sha256: str = ""
    sha256: str = ""

    def encoded(self) -> bytes:
        """Return the manifest's own file, with its digest."""
        bare = msgspec.json.encode(msgspec.structs.replace(self, sha256=""))
        own = msgspec.structs.replace(self, sha256=hashlib.sha256(bare).hexdigest())
        return msgspec.json.format(msgspec.json.encode(own))


def read(folder: Path) -> CheckpointManifest | str:
    """Return the manifest of the checkpoint in ``folder``, or what is wrong with it."""
    try:
        data = (folder / MANIFEST).read_bytes()
        found = msgspec.json.decode(data, type=CheckpointManifest)
    except FileNotFoundError:
        return f"{MANIFEST} is missing: it was removed, or this checkpoint is of a dart_streams that wrote none"
    except OSError as error:
        return f"{MANIFEST} can't be read ({error.strerror or error})"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"{MANIFEST} is torn ({error})"
    return found if data == found.encoded() else f"{MANIFEST} was changed: it is not what its own SHA-256 is of"
