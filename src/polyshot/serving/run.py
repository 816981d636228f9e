"""Starts the service on a folder, with a saved classifier as a project if one is named."""

import hashlib
import io
import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import numpy as np
import uvicorn
from PIL import Image

from polyshot.classifier import FewShotClassifier
from polyshot.errors import PolyshotError
from polyshot.serving.app import make_app
from polyshot.serving.decoder import decode
from polyshot.serving.guard import LOCAL, limited_protocol
from polyshot.serving.learning import findings
from polyshot.serving.limits import Limits, RefusedError
from polyshot.serving.records import Picture
from polyshot.serving.schemas import shown_name
from polyshot.serving.service import Service
from polyshot.util.files import file_digest, locked_if_free

EVERY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (only where a user says so)
"""Names of all addresses of the machine, and the one of them that it opens itself."""
IDLE = 30
"""Seconds that a connection is kept for the client's next request."""
LONGEST = 600
"""Seconds that running requests have when the service is to stop."""


def serve(
    folder: Path,
    make: Callable[[], FewShotClassifier],
    host: str,
    port: int,
    token: str | None,
    model: Path | None,
    say: Callable[[str], None],
    limits: Limits | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; what runs then is finished."""
    check_address(host, token)
    with locked_if_free(folder / "serve.lock") as mine:
        if not mine:
            raise PolyshotError(f"Another polyshot serve uses {folder}: name another --folder.")
        service = Service(folder, make, limits)
        try:
            project = None if model is None else import_model(service, model)
            bound = listen_on(host, port)
        except BaseException:
            service.close()
            raise
        parts = [f"token={quote(token)}"] if token else []
        parts += [f"project={project}"] if project else []
        rest = f":{bound.getsockname()[1]}/{'#' + '&'.join(parts) if parts else ''}"
        say(f"Open http://{opened_at(host)}{rest}  (Ctrl-C stops it)")
        if host in EVERY:
            say(f"From other machines: http://{socket.gethostname()}{rest}")
        config = uvicorn.Config(
            make_app(service, host, token),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE,
            timeout_graceful_shutdown=LONGEST,
            http=limited_protocol(service.limits),
            ws="none",
        )
        uvicorn.Server(config).run(sockets=[bound])


def opened_at(host: str) -> str:
    """Return the address that a browser on this machine opens."""
    own = EVERY.get(host, host)
    return f"[{own}]" if ":" in own else own


def check_address(host: str, token: str | None) -> None:
    """Refuse an address that others can reach without a token, and tokens that can be guessed."""
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isalnum()):
        raise PolyshotError(
            "A token has 16 or more letters and digits: python -c 'import secrets; "
            "print(secrets.token_hex())' makes one."
        )
    if host not in LOCAL and token is None:
        raise PolyshotError(
            f"Others can reach {host}: give a --token that they need, or leave out --host."
        )


def listen_on(host: str, port: int) -> socket.socket:
    """Take an address: whoever connects from now on is answered, if later."""
    made = socket.socket(socket.AF_INET6 if _is_six(host) else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(256)
    except OSError as error:
        made.close()
        raise PolyshotError(
            f"{host}:{port} cannot be listened on ({error.strerror or error}): name another --port."
        ) from None
    return made


def _is_six(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def import_model(service: Service, path: Path) -> str:
    """Make a project of a saved classifier, once; returns its id."""
    store = service.store
    loaded = FewShotClassifier.load(path)  # refuses what is none, and no file at all
    if loaded.takes_embeddings:
        raise PolyshotError(f"{path} classifies embeddings, not images: it cannot be served.")
    source = file_digest(path)
    known = [each for each in store.projects() if each.source == source]
    if known and store.fit_of(known[0].id) is not None:
        return known[0].id
    try:
        project = known[0] if known else store.add_project(path.stem, source)
        for name in loaded.classes_:
            store.add_class(project.id, str(name))
        kept = []
        for pixels, label, file in loaded.example_pictures():
            image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
            picture = _picture(image, service.limits.pixels)
            kept.append(store.add_image(project.id, picture, shown_name(file), str(label)))
    except RefusedError as error:
        raise PolyshotError(error.sentence) from None
    version = store.project(project.id).version
    service.learner.keep(project.id, loaded, version, kept, findings(loaded, kept))
    return project.id


def _picture(image: Image.Image, pixels: int) -> Picture:
    """Make an image's files from pixels that are ours, so that no other process is needed."""
    file = io.BytesIO()
    image.save(file, "PNG")
    data = file.getvalue()
    _, parts = decode(data, pixels)
    return Picture(hashlib.sha256(data).hexdigest(), parts[1], parts[2])
