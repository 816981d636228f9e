"""Malformed requests to the HTTP service, by the application's test client."""

import json
import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from fastapi.testclient import TestClient

from polyshot.classifier import FewShotClassifier
from polyshot.pool.pool import Pool
from polyshot.serving.app import make_app
from polyshot.serving.limits import Limits
from polyshot.serving.service import Service
from tests.serving.conftest import Api, encoded

from .mutations import RAW, damaged, damaged_json
from .trials import HANG, REFUSED, RIGHT, Part, Verdict
from .world import World, valid_images

TEXTS = (
    "",
    " ",
    "..",
    "../../x",
    "a" * 300,
    "\x00",
    "é",
    "%",
    "[/b]",
    "<script>",
    "1",
    "x/y",
    "=1+1",
)


class Opened:
    """A service with two projects: one that stays as it is, and one that everything happens to."""

    def __init__(self, world: World):
        self.folder = world.folder / f"service-{id(self)}"
        shutil.rmtree(self.folder, ignore_errors=True)
        pool = Pool.load(world.colours)
        self.service = Service(
            self.folder, lambda: FewShotClassifier(pool, "average", "ridge"), Limits(projects=10**6)
        )
        self.client = TestClient(make_app(self.service), base_url="http://127.0.0.1:8000")
        self.client.__enter__()
        self.api = Api(self.client)
        self.kept = self.api.project()
        self.api.teach(self.kept)
        self.api.fit(self.kept)
        self.wanted = self.answers()
        self.victim = self.api.project("victim")

    def answers(self) -> Any:
        """What the project that stays says to an image."""
        from tests.helpers import coloured

        files = [("images", ("q.png", encoded(coloured("blue", 9))))]
        return self.api("POST", f"/api/projects/{self.kept}/predict", files=files)

    def renewed(self) -> str:
        """A project for what may be destroyed."""
        if self.client.get(f"/api/projects/{self.victim}").status_code != 200:
            self.victim = self.api.project("victim")
        return self.victim


def requests(world: World) -> Any:
    """A request that is wrong in one way or several."""
    opened = cache(lambda: Opened(world))

    def run(draw: random.Random, _folder: Path) -> Verdict:
        at = opened()
        method, path, options = made(draw, at.renewed(), at.kept)
        found = at.client.request(method, path, **options)
        if draw.random() < 0.05 and at.answers() != at.wanted:
            return Verdict("different", "another project answers differently")
        return judged(found)

    return run


def judged(found: httpx.Response) -> Verdict:
    """A status below 500 (or: later, no room), and one sentence where it is refused."""
    if found.status_code < 400:
        return RIGHT
    if found.status_code >= 500 and found.status_code not in (503, 507):
        return Verdict("traceback", f"{found.status_code} {found.text[:200]}")
    try:
        sentence = found.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return REFUSED if not found.content else Verdict("traceback", found.text[:200])
    if not isinstance(sentence, str) or not sentence or "\n" in sentence:
        return Verdict("traceback", f"not one line: {sentence!r}"[:300])
    return REFUSED


def made(draw: random.Random, victim: str, kept: str) -> tuple[str, str, dict[str, Any]]:
    """Draw a request."""
    text = draw.choice(TEXTS)
    images = f"/api/projects/{victim}/images"
    routes = [
        ("POST", "/api/projects"),
        ("PATCH", f"/api/projects/{victim}"),
        ("POST", f"/api/projects/{victim}/classes"),
        ("PATCH", f"/api/projects/{victim}/classes/{quote(text, safe='')}"),
        ("DELETE", f"/api/projects/{victim}/classes/{quote(text, safe='')}"),
        ("DELETE", f"/api/projects/{victim}"),
        ("POST", images),
        ("POST", images),
        ("POST", images),
        ("POST", f"/api/projects/{kept}/predict"),
        ("POST", f"/api/projects/{kept}/predict"),
        ("PATCH", f"{images}/{draw.choice((0, 1, -1, 10**30, 'x'))}"),
        ("DELETE", f"{images}/{draw.choice((0, 1, -1, 10**30, 'x'))}"),
        ("GET", f"{images}/1/thumbnail"),
        ("GET", f"/api/projects/{kept}/answers"),
        ("GET", f"/api/projects/{kept}/next"),
        ("GET", f"/api/projects/{kept}/export/{quote(text, safe='')}"),
        ("GET", f"/api/projects/{quote(text, safe='')}"),
        ("POST", f"/api/projects/{victim}/fit"),
        ("DELETE", f"/api/projects/{victim}/fit"),
        ("POST", "/api/session"),
        ("GET", f"/page/{quote(text)}"),
    ]
    method, path = draw.choice(routes)
    if draw.random() < 0.1:
        method = draw.choice(("GET", "POST", "PUT", "OPTIONS", "HEAD", "DELETE", "TRACE"))
    if draw.random() < 0.1:
        path = "/" + quote(damaged(path.encode(), draw)[1:], safe="/%?=&:@")
    options: dict[str, Any] = {}
    if draw.random() < 0.4:
        name = draw.choice(("label", "none_rate", "after", "count", "labelled"))
        options["params"] = {name: draw.choice((*TEXTS, *RAW))[:2000]}
    if draw.random() < 0.2:
        name = draw.choice(("host", "origin", "content-type", "cookie", "authorization", "accept"))
        options["headers"] = {
            name: draw.choice(("", "x", "*/*", "multipart/form-data", "a;b=c" * 50))
        }
    if method in ("POST", "PATCH", "PUT"):
        options |= _body(draw, path)
    return method, path, options


def _body(draw: random.Random, path: str) -> dict[str, Any]:
    known = valid_images()
    images = [damaged(known[draw.choice(list(known))], draw) for _ in range(draw.choice((1, 1, 3)))]
    way = draw.random()
    if path.endswith(("images", "predict")) and way < 0.6:
        names = (draw.choice((*TEXTS, "x.png")) for _ in images)
        files = [("images", (name, data)) for name, data in zip(names, images, strict=True)]
        if way < 0.45:
            return {"files": files}
        sent = httpx.Request("POST", "http://x/", files=files)
        body, kind = sent.read(), sent.headers["content-type"]
        if draw.random() < 0.3:
            kind = damaged(kind.encode(), draw).decode("latin-1")
            kind = "".join(c for c in kind if c.isprintable() and ord(c) < 127)
        return {"content": damaged(body, draw), "headers": {"content-type": kind}}
    valid: dict[str, Any] = {"name": "cat"}
    if path.endswith(("images", "predict")):
        import base64

        valid = {"images": [{"data": base64.b64encode(images[0]).decode(), "file": "x.png"}]}
    elif path.endswith("session"):
        valid = {"token": "x"}
    elif "/images/" in path:
        valid = {"label": "cat"}
    body = damaged_json(json.dumps(valid).encode(), draw)
    return {"content": body, "headers": {"content-type": "application/json"}}


def parts(world: World) -> list[Part]:
    """One row."""
    about = "to the HTTP service: paths, bodies, images, headers"
    return [Part("requests", about, 800, requests(world), patience=HANG)]
