"""Makes hashes true again after damage: what a person with bad intentions would send."""

import hashlib
import io
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from polyshot.data.pack import Domain, content_hash
from polyshot.util.checks import CHECKSUM, sealed

from .mutations import damaged, damaged_json


def reseal_pack(place: Path) -> bool:
    """Let a pack's description have the hash of its content; tells whether there is any."""
    file = place / "domain.json"
    try:
        about = json.loads(file.read_bytes())
        labels = np.load(place / "labels.npy")
        domain = Domain(about["name"], tuple(about["classes"]), labels, None)
        about["hash"] = content_hash(place, domain)
        file.write_text(json.dumps(sealed(about)))
    except Exception:  # too damaged for a hash
        return False
    return True


def reseal_pool(place: Path) -> bool:
    """Let a pool's description have the hashes of its files."""
    file = place / "pool.json"
    try:
        about = json.loads(file.read_bytes())
        for name in about["files"]:
            about["files"][name] = hashlib.sha256((place / name).read_bytes()).hexdigest()
        file.write_text(json.dumps(sealed(about)))
    except (OSError, ValueError, TypeError, KeyError, RecursionError, AttributeError):
        return False
    return True


def reseal_classifier(data: bytes, draw: random.Random, honest: bool) -> bytes:
    """Damage one file inside a classifier, and make its hashes true again if that is wanted."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    name = "classifier.json" if draw.random() < 0.6 else draw.choice(list(files))
    change = damaged_json if name.endswith(".json") else damaged
    files[name] = change(files[name], draw)
    if honest:
        try:
            about: dict[str, Any] = json.loads(files["classifier.json"])
            about["files"] = {
                other: hashlib.sha256(content).hexdigest()
                for other, content in files.items()
                if other != "classifier.json"
            }
            text = json.dumps(sealed(about))
            files["classifier.json"] = text.encode("utf-8", "surrogatepass")
        except (ValueError, TypeError, RecursionError):
            files[name] += b" "
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for other, content in files.items():
            archive.writestr(zipfile.ZipInfo(other), content)
    return file.getvalue()


def without_seal(text: bytes) -> bool:
    """Whether a description has no checksum any more, as those of older versions."""
    try:
        return CHECKSUM not in json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return False
