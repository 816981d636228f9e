"""Who may ask, how much is accepted, and what happens to odd uploads."""

import asyncio
import signal
import socket
import struct
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from PIL import Image

from polyshot.errors import PolyshotError
from polyshot.serving import batching
from polyshot.serving.app import make_app
from polyshot.serving.batching import Batcher
from polyshot.serving.decoding import Decoder
from polyshot.serving.guard import limited_protocol
from polyshot.serving.limits import Limits, Memory, Metrics, RefusedError, resident_bytes
from polyshot.serving.run import check_address, listen_on, opened_at
from polyshot.serving.service import Service
from tests.helpers import examples

from .conftest import Api, encoded, make, red

TOKEN = "abcdefgh12345678"


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:8000"},
        {"host": "10.0.0.7:8000"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_foreign_pages_are_refused(api: Api, headers: dict[str, str]) -> None:
    for method, path in (("GET", "/api/projects"), ("POST", "/api/projects"), ("GET", "/")):
        assert api.refused(method, path, headers=headers, json={"name": "x"})[0] == 403
    assert api("GET", "/api/projects") == []


def test_own_page_and_links_to_it_are_let_in(api: Api) -> None:
    for host in ("localhost:8000", "127.0.0.1:8000", "[::1]:8000"):
        headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
        assert api("GET", "/api/projects", headers=headers) == []
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    page = api.client.get("/", headers=link)
    assert page.status_code == 200 and "<html" in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert api.client.get("/page/../store.py").status_code == 404


def test_other_addresses_need_a_token(opened: Callable[..., Api]) -> None:
    api = opened("0.0.0.0", TOKEN)
    assert api.client.get("/").status_code == 200  # nothing of a project is here
    for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": "polyshot_token_=x"}):
        assert api.refused("GET", "/api/projects", headers=headers)[0] == 401
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert api("GET", "/api/projects", headers={**bearer, "host": "192.168.1.5:8000"}) == []
    assert api.refused("GET", "/api/projects", headers={**bearer, "host": "a.example"})[0] == 403
    assert api.refused("POST", "/api/session", json={"token": "no"})[0] == 401
    api("POST", "/api/session", json={"token": TOKEN})  # the cookie is kept by the client
    assert api("GET", "/api/projects") == []
    with pytest.raises(PolyshotError, match="--token"):
        check_address("0.0.0.0", None)
    with pytest.raises(PolyshotError, match="16 or more"):
        check_address("0.0.0.0", "short")


def test_limits_are_sentences(opened: Callable[..., Api]) -> None:
    api = opened(
        projects=2, classes=2, images=3, images_a_request=2, image_bytes=5000, request_bytes=20000
    )
    project, _ = api.project(), api.project()
    images = f"/api/projects/{project}/images"

    def send(*data: bytes, label: str = "a") -> tuple[int, str]:
        files = [("images", (f"{i}.png", one)) for i, one in enumerate(data)]
        return api.refused("POST", images, files=files, params={"label": label})

    assert api.refused("POST", "/api/projects", json={"name": "x"})[0] == 429
    assert send(red(1), red(2), red(3)) == (413, "A request has at most 2 images: send fewer.")
    assert send(b"x" * 5001)[0] == 413
    assert send(b"x" * 20001)[0] == 413
    stream = api.client.post(
        images, content=iter([b"x" * 4000] * 9), headers={"content-type": "application/json"}
    )
    assert stream.status_code == 413  # without a Content-Length
    api.add(project, "a", red(1))
    api.add(project, "b", red(2))
    assert send(red(3), label="c") == (429, "There are 2 classes already: delete one first.")
    api.add(project, None, red(3))
    assert send(red(4))[0] == 429
    api = opened(disk_bytes=100)
    assert "MiB" in api.refused("POST", images, files=[("images", ("x", red(5)))])[1]


@pytest.mark.parametrize("name", ["", " ", "..", "a\nb\x00", "x" * 101])
def test_names_that_cannot_be_shown(api: Api, name: str) -> None:
    assert api.refused("POST", "/api/projects", json={"name": name})[0] == 422


def test_names_are_never_paths(api: Api, tmp_path: Path) -> None:
    project = api.project("../../etc")
    files = [("images", ("../../../evil.png", red(1)))]
    params = {"label": "../up"}
    path = f"/api/projects/{project}/images"
    [kept] = api("POST", path, files=files, params=params)["images"]
    assert kept == {"id": 1, "file": "evil.png", "label": "../up"}
    names = [file.name for file in tmp_path.rglob("*") if file.is_file()]
    assert not [name for name in names if "evil" in name or "up" in name]
    assert api.client.get("/api/projects/..%2F..%2Fx").status_code in (404, 422)
    classes = f"/api/projects/{project}/classes"
    api("PATCH", f"{classes}/..%2Fup", json={"name": "a/b?#%"})
    api("DELETE", f"{classes}/a%2Fb%3F%23%25")
    assert api("GET", f"/api/projects/{project}")["classes"] == []


def bomb() -> bytes:
    """A PNG that claims 30,000 x 30,000 pixels."""
    head = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    made = b"\x89PNG\r\n\x1a\n"
    for chunk in (b"IHDR" + head, b"IDAT" + zlib.compress(bytes(1000))):
        length, check = struct.pack(">I", len(chunk) - 4), struct.pack(">I", zlib.crc32(chunk))
        made += length + chunk + check
    return made


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 422),
        (b"<html><script>alert(1)</script></html>", 422),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 422),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 422),
        (encoded(Image.effect_noise((400, 400), 60), "JPEG")[:3000], 422),
        (bomb(), 413),
    ],
)
def test_odd_uploads(api: Api, data: bytes, status: int) -> None:
    project = api.project()
    path = f"/api/projects/{project}/images"
    code, sentence = api.refused("POST", path, files=[("images", ("odd", data))])
    assert code == status and sentence.startswith("'odd' cannot be read")
    both = api("POST", path, files=[("images", ("odd", data)), ("images", ("good", red(1)))])
    assert [one["file"] for one in both["refused"]] == ["odd"]
    assert [one["file"] for one in both["images"]] == ["good"]


def test_a_decoder_that_dies_takes_only_its_image_along() -> None:
    decoder = Decoder(Limits(), processes=1)
    first = decoder.pixels(red(1), "a")
    child = decoder._free.queue[0]
    assert child is not None
    child.send_signal(signal.SIGSTOP)
    threading.Timer(0.3, child.kill).start()
    with pytest.raises(RefusedError, match="'b' cannot be read: decoding it took too long"):
        decoder.picture(red(2), "b")
    again = decoder.pixels(red(1), "a")
    assert np.array_equal(first, again) and again.shape == (19, 23, 3)
    decoder.close()
    slow = Decoder(Limits(decode_seconds=0.0), processes=1)
    with pytest.raises(RefusedError, match="took too long"):
        slow.pixels(encoded(Image.effect_noise((3000, 3000), 60)), "c")
    slow.close()


def test_concurrent_questions_are_answered_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = make().fit(*examples(3, 3, 3))
    images = [np.asarray(image) for image in examples(5, 5, 5, first=40)[0]]
    alone = [classifier.judge([image]) for image in images]
    sizes, judge, hold = [], classifier.judge, threading.Event()

    def watched(given: list[object]) -> object:
        sizes.append(len(given))
        hold.wait(10)
        return judge(given)

    monkeypatch.setattr(classifier, "judge", watched)
    monkeypatch.setattr(batching, "LARGEST", 8)
    metrics = Metrics()
    batcher = Batcher(15, metrics)
    with ThreadPoolExecutor(15) as threads:
        [first] = batcher.submit(classifier, images[:1])
        while not sizes:
            pass
        waiting = list(threads.map(lambda one: batcher.submit(classifier, [one])[0], images[1:]))
        with pytest.raises(RefusedError, match="14 images wait"):
            batcher.submit(classifier, images[:2])
        hold.set()
        found = [one.result(30) for one in [first, *waiting]]
    batcher.close()
    assert sizes == [1, 8, 6]
    for (chances, rates), one in zip(alone, found, strict=True):
        np.testing.assert_allclose(chances[0], one.probabilities, atol=1e-5)
        assert rates is not None and rates[0] == pytest.approx(one.none_rate)
    with pytest.raises(RefusedError, match="being stopped"):
        batcher.submit(classifier, images[:1])
    assert "polyshot_images_total 15\n" in metrics.text()


def test_a_body_that_does_not_come(opened: Callable[..., Api]) -> None:
    api = opened(body_seconds=0.05)
    sent: list[dict[str, object]] = []

    async def ask() -> None:
        async def receive() -> dict[str, object]:
            await asyncio.sleep(5)
            return {"type": "http.request"}

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {
            **{"type": "http", "method": "POST", "path": "/api/projects", "headers": headers},
            **{"query_string": b"", "http_version": "1.1", "scheme": "http", "root_path": ""},
        }
        await api.client.app(scope, receive, send)  # type: ignore[attr-defined]

    asyncio.run(ask())
    assert sent[0]["status"] == 408, sent


def test_memory_that_is_full_is_refused(opened: Callable[..., Api]) -> None:
    api = opened()
    project = api.project()
    api.teach(project)
    path = f"/api/projects/{project}"
    large = [("images", ("noise.png", encoded(Image.effect_noise((300, 300), 60))))]
    assert len(large[0][1][1]) > 1 << 16
    api = opened(memory_bytes=1000)
    assert api.refused("POST", f"{path}/images", files=large)[0] == 413  # never, then
    assert "memory" in api.refused("POST", f"{path}/fit")[1]
    full = resident_bytes() // 2  # it has more already
    api = opened(memory_bytes=full if full else 200_000)
    code, sentence = api.refused("POST", f"{path}/images", files=large)
    assert code == 429 and sentence.startswith("The memory is full")
    stream = iter([b"x" * 60_000] * 20)  # its length is not said
    kind = {"content-type": "application/json"}
    assert api.refused("POST", f"{path}/images", content=stream, headers=kind)[0] == 429
    assert api("GET", path)["labelled"] == 12
    api("PATCH", path, json={"name": "small requests go on"})


def test_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    has, dropped = 50, []
    memory = Memory(100, lambda: has)
    with memory.reserve(40):
        assert memory.taken() == 90
        with pytest.raises(RefusedError, match="ask again later"):
            memory.reserve(20)
    assert memory.taken() == 50

    def give_up() -> None:
        nonlocal has
        dropped.append(has)
        has = 10

    memory.give_up = give_up
    monkeypatch.setattr("polyshot.serving.limits.CALM", 0)
    with memory.reserve(60), pytest.raises(RefusedError), memory.reserve(60):
        pass
    assert dropped == [50, 10] and memory.taken() == 10
    with pytest.raises(RefusedError, match="send less") as refused:
        memory.reserve(101)
    assert refused.value.status == 413


def test_the_queue_has_a_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier, begun, hold = make().fit(*examples(3, 3)), threading.Event(), threading.Event()
    judge = classifier.judge

    def watched(given: list[object]) -> object:
        begun.set()
        hold.wait(10)
        return judge(given)

    monkeypatch.setattr(classifier, "judge", watched)
    image = np.zeros((10, 10, 3), np.uint8)
    batcher = Batcher(99, Metrics(), most_bytes=700)
    first = batcher.submit(classifier, [image])
    begun.wait(10)
    second = batcher.submit(classifier, [image, image])
    with pytest.raises(RefusedError, match="2 images wait"):
        batcher.submit(classifier, [image])
    hold.set()
    assert all(one.result(30) for one in first + second)
    third = batcher.submit(classifier, [image, image, image])  # alone even a large one is let in
    assert all(one.result(30) for one in third)
    batcher.close()


def test_connections_that_say_nothing(tmp_path: Path) -> None:
    limits = Limits(connections=3, head_seconds=0.3)
    bound = listen_on("127.0.0.1", 0)
    app = make_app(Service(tmp_path / "folder", make, limits))
    config = uvicorn.Config(app, log_level="warning", http=limited_protocol(limits), ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        silent = [socket.create_connection(bound.getsockname(), 10) for _ in range(3)]
        silent[0].sendall(b"GET /healthz HTT")
        with socket.create_connection(bound.getsockname(), 10) as more:
            assert b"503" in more.recv(1000)
        assert [one.recv(1000) for one in silent] == [b""] * 3  # closed without a word
        with socket.create_connection(bound.getsockname(), 10) as asks:
            asks.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in asks.recv(1000)
        for one in silent:
            one.close()
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


def test_the_address_that_is_said_can_be_opened() -> None:
    said = {"127.0.0.1": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::1": "[::1]", "::": "[::1]"}
    assert {host: opened_at(host) for host in said} == said
