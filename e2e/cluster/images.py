"""An image of one static program, written as an archive of the OCI layout: no builder, no registry."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

MEDIA = "application/vnd.oci.image"


def write_archive(path: Path, *, name: str, program: Path) -> None:
    """Writes an archive that holds an image `name` with `program` as its only file and its entry point."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        _add(tar, program.name, program.read_bytes(), mode=0o755)
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"{MEDIA}.{media_type}", "digest": f"sha256:{digest}", "size": len(content)}

    layer_blob = blob(layer.getvalue(), "layer.v1.tar")
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [layer_blob["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{MEDIA}.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [layer_blob],
    }
    entry = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    entry["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    blobs["oci-layout"] = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
    with tarfile.open(path, mode="w") as tar:
        for file, content in blobs.items():
            _add(tar, file, content)


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    tar.addfile(info, io.BytesIO(content))
