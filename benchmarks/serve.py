"""How the service answers many clients: images/s against one big batch, and how long each waits.

    python benchmarks/serve.py

Starts `polyshot serve` in a process of its own and teaches it five drawn classes. Compared are, in
turns: its classifier in this process, which is given 256 files at once; one client that sends 256
at once; 32 clients that send one image each, again and again.
"""

import argparse
import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from polyshot.classifier import FewShotClassifier
from polyshot.data.toy import draw_example

BOUNDARY = "polyshot-benchmark"
OCTETS = "application/octet-stream"


def body_of(images: list[bytes]) -> bytes:
    """Images as multipart/form-data."""
    parts = []
    for i, data in enumerate(images):
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="{i}"\r\n'
        parts += [head.encode(), b"Content-Type: image/png\r\n\r\n", data, b"\r\n"]
    return b"".join([*parts, f"--{BOUNDARY}--\r\n".encode()])


class Client:
    """One connection that stays open."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "") -> Any:
        """Ask, and return what the JSON says."""
        self._connection.request(method, path, body, {"Content-Type": kind} if kind else {})
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {data.decode()}")
        return data if answer.headers["content-type"] == OCTETS else json.loads(data)

    def send(self, path: str, images: list[bytes]) -> Any:
        """Send images."""
        return self.ask("POST", path, body_of(images), f"multipart/form-data; boundary={BOUNDARY}")


def taught(client: Client, folder: Path) -> tuple[str, list[bytes]]:
    """Teach a project; returns where it predicts, and images to classify."""
    drawn = draw_example(folder / "example", "flowers", 5, 5, 52, 0)
    made = client.ask("POST", "/api/projects", b'{"name": "benchmark"}', "application/json")
    path = f"/api/projects/{made['id']}"
    for each in sorted(place for place in drawn.support.iterdir() if place.is_dir()):
        images = [file.read_bytes() for file in sorted(each.iterdir())]
        client.send(f"{path}/images?label={quote(each.name)}", images)
    client.ask("POST", f"{path}/fit")
    while client.ask("GET", f"{path}/fit")["state"] in ("waiting", "running"):
        time.sleep(0.1)
    queries = [file.read_bytes() for file in sorted(drawn.query.iterdir())]
    return f"{path}/predict", queries[:256]


def big_batches(client: Client, path: str, images: list[bytes], count: int) -> float:
    """Images/s in large requests."""
    began = time.perf_counter()
    for _ in range(count):
        client.send(path, images)
    return count * len(images) / (time.perf_counter() - began)


def direct(classifier: FewShotClassifier, images: list[bytes], count: int) -> float:
    """Images/s of the classifier itself, decoding included."""
    began = time.perf_counter()
    for _ in range(count):
        classifier.judge(images)
    return count * len(images) / (time.perf_counter() - began)


def many_clients(
    port: int, path: str, images: list[bytes], clients: int, seconds: float
) -> tuple[float, list[float]]:
    """Images/s of clients that ask for one image at a time, and how long each answer took."""
    waits: list[float] = []
    end = time.perf_counter() + seconds

    def work(number: int) -> None:
        client, i = Client(port), number
        while time.perf_counter() < end:
            began = time.perf_counter()
            client.send(path, [images[i % len(images)]])
            waits.append(time.perf_counter() - began)
            i += clients

    began = time.perf_counter()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(waits) / (time.perf_counter() - began), waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pool", default="default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "polyshot", "serve", "--port", "0", "--pool", options.pool]
        child = subprocess.Popen(
            [*command, "--folder", str(folder / "projects")], stdout=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout is not None
            port = 0
            while not port:
                found = re.search(r"http://127.0.0.1:(\d+)/", child.stdout.readline())
                port = int(found.group(1)) if found else 0
            client = Client(port)
            path, images = taught(client, folder)
            # In turns, since machines are not equally busy all the time.
            file = folder / "c.polyshot"
            project = path.rpartition("/")[0]
            file.write_bytes(client.ask("GET", f"{project}/export/classifier.polyshot"))
            loaded = FewShotClassifier.load(file)
            plain, batches, singles, waits = [], [], [], []
            for _ in range(3):
                plain.append(direct(loaded, images, 1))
                batches.append(big_batches(Client(port), path, images, 1))
                rate, own = many_clients(port, path, images, options.clients, options.seconds / 3)
                singles.append(rate)
                waits += own
        finally:
            child.terminate()
            child.wait()
    alone, one, many = (float(np.median(rates)) for rates in (plain, batches, singles))
    p50, p99 = 1000 * np.quantile(waits, [0.5, 0.99])
    print(f"the classifier itself, {len(images)} images at once: {alone:.0f} images/s")
    print(f"one client, {len(images)} images at once: {one:.0f} images/s ({one / alone:.0%})")
    print(f"{options.clients} clients, one image each: {many:.0f} images/s ({many / alone:.0%})")
    print(f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, {len(waits)} answers")


if __name__ == "__main__":
    main()
