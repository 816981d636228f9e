"""Pools in the layout of the Hugging Face Hub: a pool's folder with a README.md that the Hub reads.

A repository of the Hub is a folder. Its README.md begins with a few lines of YAML, by which the Hub
finds and shows it: licence, tags, datasets, what was measured. The rest is the pool's card.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyshot.errors import PolyshotError
from polyshot.models.foreign import ForeignConfig, first_line
from polyshot.pool.files import write_pool
from polyshot.pool.precision import Precision

if TYPE_CHECKING:
    from polyshot.pool.pool import Pool

README = "README.md"
TAGS = ("polyshot", "few-shot", "image-classification", "domain-adaptation")
FILES = ("pool.json", "*.safetensors", "modulators/*.safetensors", "*.md")
"""What is fetched of a repository."""


def write_pretrained(
    pool: "Pool", folder: Path, precision: Precision, card: str | None, licence: str | None
) -> None:
    """Write a pool's folder with its README.md, whole or not at all."""
    if (folder / ".git").exists():
        raise PolyshotError(
            f"{folder} is a git checkout, which would be replaced: write into another folder, and "
            "copy its files or upload them (hf upload)."
        )
    text = f"{header(pool, licence)}\n{_short_card(pool) if card is None else card.strip()}\n"
    write_pool(pool, folder, precision, {README: text})


def header(pool: "Pool", licence: str | None = None) -> str:
    """Write what the Hub reads, between two lines of dashes; JSON is YAML, too."""
    about: dict[str, Any] = {
        "library_name": "polyshot",
        "pipeline_tag": "image-classification",
        "tags": list(TAGS),
    }
    if licence:
        about["license"] = licence
    if sources := _known(pool, "packs"):
        about["datasets"] = list(sources)
    if results := _results(pool):
        about["metrics"] = ["accuracy"]
        about["model-index"] = [{"name": f"polyshot-{pool.hash[:12]}", "results": results}]
    if isinstance(pool.config, ForeignConfig):
        library, _, inside = pool.config.name.partition(":")
        if library in ("timm", "transformers") and inside and not Path(inside).exists():
            about["base_model"] = inside
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in about.items()]
    return "\n".join(["---", *lines, "---", ""])


def _known(pool: "Pool", what: str) -> dict[str, Any]:
    """Look up what a pool says about its training, if anything."""
    found = pool.about.get(what)
    return found if isinstance(found, dict) else {}


def _results(pool: "Pool") -> list[dict[str, Any]]:
    """List members' accuracies on validation classes of their sources, as the Hub has them."""
    shape = pool.task_shape
    name = f"{shape.way}-way {shape.shot}-shot accuracy on validation classes"
    results = []
    for domain in pool.modulators:
        about = _known(pool, "steps").get(f"modulator:{domain}")
        value = about.get("validation") if isinstance(about, dict) else None
        if isinstance(value, float):
            metric = {"type": "accuracy", "name": name, "value": round(value, 4)}
            results.append(
                {
                    "task": {"type": "image-classification"},
                    "dataset": {"name": domain, "type": domain},
                    "metrics": [metric],
                }
            )
    return results


def _short_card(pool: "Pool") -> str:
    members = ", ".join(pool.members)
    return f"""# A pool for few-shot classification

It classifies images from a handful of examples of each class, in any visual domain. Members over
one `{pool.backbone}`: {members}. Images of {pool.size} pixels; hash `{pool.hash[:12]}`.

```python
from polyshot import Pool

classifier = Pool.from_pretrained("...").classifier()  # this folder, or its id on the Hub
classifier.fit(["cat/0.jpg", "cat/1.jpg", "dog/0.jpg"], ["cat", "cat", "dog"])
classifier.predict(["new.jpg"])
```
"""


def find_pretrained(name: Path | str, revision: str | None, download: bool) -> Path:
    """Return the folder of a pool: itself, or what the Hub's cache holds of a repository.

    `download` allows to fetch what is not there; `revision` is a branch, a tag or a commit.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    looks_local = isinstance(name, Path) or folder.is_absolute() or name.startswith((".", "~"))
    if looks_local or folder.exists():
        raise PolyshotError(f"There is no folder {name}: name the folder of a pool, or its id.")
    try:
        hub: Any = import_module("huggingface_hub")
    except ModuleNotFoundError:
        raise PolyshotError(
            f"There is no folder {name}, and pools of the Hugging Face Hub need the package "
            "huggingface_hub: pip install 'polyshot[hub]'."
        ) from None
    try:
        found = hub.snapshot_download(
            name, revision=revision, allow_patterns=list(FILES), local_files_only=not download
        )
    except Exception as error:  # of the hub, of the network, of names that are none
        if download:
            raise PolyshotError(
                f"The pool '{name}' could not be fetched ({first_line(error)}): check its id and "
                "the network, or name a folder that holds its files."
            ) from None
        raise PolyshotError(
            f"'{name}' is neither a folder nor a pool in the Hub's local cache, and nothing is "
            "fetched unasked: allow the download (download=True), or name a folder that holds it."
        ) from None
    return Path(found)
