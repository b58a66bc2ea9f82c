"""An image of one static program, as the archive that `docker save` would write."""

import hashlib
import io
import json
import tarfile
from pathlib import Path


def add_file(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def write_image(target: Path, name: str, program: Path) -> None:
    """Write an image that runs ``program`` and has nothing else in it."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        add_file(archive, program.name, program.read_bytes(), 0o755)
    content = layer.getvalue()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": [f"/{program.name}"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as archive:
        add_file(archive, "layer.tar", content)
        add_file(archive, config_name, config)
        add_file(archive, "manifest.json", json.dumps(manifest).encode())
