"""Who may ask, and how much: the first thing that every connection and every request meets.

A page of a foreign site must not reach the service, although the browser that shows it could. So
the Host has to be this machine's (an attacker's name that is made to point here, DNS rebinding, is
not), and the Origin has to be the service itself. Addresses that others can reach need a token.
Only so many clients connect at once, and none that never says what it wants.
"""

import asyncio
import hashlib
import ipaddress
import json
import secrets
import socket
import time
from http.cookies import CookieError, SimpleCookie
from typing import Any

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from polyshot.serving.limits import Limits, Memory, Metrics, RefusedError, Reservation

COOKIE = "polyshot_token_"
"""The beginning of its name; a port is no part of a cookie's place, so that the end is the token's.
"""
OPEN = ("/", "/healthz", "/api/session")
"""Without a token: nothing of a project is here. The page's own files are open, too."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob:; media-src 'self' blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
}
LOCAL = ("localhost", "127.0.0.1", "::1")
COPIES = 2
"""Of a body, in memory at once: as it came, and the files in it."""
SMALL = 1 << 16
"""Bytes of a body for which no memory is reserved: names and labels."""


class Guard:
    """Stands before the application."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        metrics: Metrics,
        memory: Memory,
        host: str,
        token: str | None,
    ) -> None:
        self.app, self.limits, self.metrics, self.memory = app, limits, metrics, memory
        self.host, self.token = host, token
        self._names = {*LOCAL, host.lower()}
        if host not in LOCAL:
            self._names.add(socket.gethostname().lower())
        self._uploads = 0
        self.cookie = COOKIE + hashlib.sha256((token or "").encode()).hexdigest()[:8]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it by a status and a sentence."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        refused: list[RefusedError] = []
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if refused and not started:  # frameworks have words of their own for a body that fails
                return
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["cache-control"] = "no-store"
                self.metrics.add("requests_total", label=f'status="{message["status"]}"')
            await send(message)

        headers = Headers(scope=scope)
        takes_body = scope["method"] not in ("GET", "HEAD", "OPTIONS", "DELETE")
        self._uploads += takes_body
        try:
            self._check(scope, headers)
            if takes_body and self._uploads > self.limits.uploads:
                raise RefusedError(429, "Many requests are worked on: ask again later.")
            with Reservation(self.memory) as held:
                if takes_body:
                    await self._hold(held, int(headers.get("content-length", "0")))
                await self.app(scope, self._limited(receive, refused, held), answer)
        except RefusedError as error:
            refused.append(error)
        finally:
            if refused and not started:
                first = refused[0]
                refused.clear()
                response = JSONResponse({"detail": first.sentence}, first.status)
                await response(scope, receive, answer)
            self._uploads -= takes_body
            self.metrics.add("request_seconds_total", time.perf_counter() - began)

    def allows(self, token: str) -> bool:
        """Whether this is the token; where none is needed, any is."""
        return self.token is None or secrets.compare_digest(token.encode(), self.token.encode())

    def _check(self, scope: Scope, headers: Headers) -> None:
        host = headers.get("host", "")
        name = _host_name(host)
        if not self._is_ours(name):
            raise RefusedError(
                403, "This name is not the service's: open it as polyshot serve says."
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (
            f"http://{host}".lower(),
            f"https://{host}".lower(),
        ):
            raise RefusedError(403, "Pages of other sites may not use this service.")
        path = scope["path"]
        # Links from elsewhere may open the page; images and scripts of it are for itself alone.
        foreign = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        opens = path == "/" and headers.get("sec-fetch-mode") == "navigate"
        if foreign and not (opens and scope["method"] == "GET"):
            raise RefusedError(403, "Pages of other sites may not use this service.")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > self.limits.request_bytes:
            raise self._too_large()
        if self.token is None or path in OPEN or path.startswith("/page/"):
            return
        if not self.allows(self._token(headers)):
            raise RefusedError(401, "A token is needed: open the address that polyshot serve says.")

    def _token(self, headers: Headers) -> str:
        """Find the token in the header of programs, or in the cookie of the page."""
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return value.strip()
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def _is_ours(self, name: str) -> bool:
        if name in self._names:
            return True
        if self.host in LOCAL:
            return False
        try:  # a number cannot be made to point elsewhere, as a name can
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _too_large(self) -> RefusedError:
        most = self.limits.request_bytes >> 20
        return RefusedError(413, f"A request has at most {most} MiB: send fewer images at once.")

    async def _hold(self, held: Reservation, length: int) -> None:
        """Reserve memory for a body of this length; small ones are let through in any case."""
        more = COPIES * length - held.size
        if length > SMALL and more > 0:
            await asyncio.to_thread(held.grow, more)

    def _limited(self, receive: Receive, refused: list[RefusedError], held: Reservation) -> Receive:
        """Count a body while it comes, and wait for it only so long; notes what it refuses."""
        seen, more = 0, True

        async def receive_some() -> Message:
            nonlocal seen, more
            if not more:  # waits for the client to go away, while it is answered
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self.limits.body_seconds)
            except TimeoutError:
                refused.append(
                    RefusedError(408, "The request did not come in time: send it again.")
                )
                raise refused[0] from None
            seen += len(message.get("body", b""))
            more = bool(message.get("more_body", False))
            if seen > self.limits.request_bytes:
                refused.append(self._too_large())
                raise refused[0]
            try:
                await self._hold(held, seen)  # its length may not have been said
            except RefusedError as error:
                refused.append(error)
                raise
            return message

        return receive_some


def _host_name(host: str) -> str:
    """Take the port off: ``127.0.0.1:8000``, ``[::1]:8000``."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


# --- connections


def limited_protocol(limits: Limits) -> type[H11Protocol]:
    """Make uvicorn's HTTP/1.1 with limits on connections and on the time until a request."""

    class Limited(H11Protocol):
        late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                transport.write(_refusal("Many are connected already: ask again later."))
                transport.close()
            else:
                self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.late is not None:
                self.late.cancel()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Wait for the end of a request's head, not longer than is allowed."""
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                if self.late is None:
                    self.late = self.loop.call_later(limits.head_seconds, self._end)
            elif self.late is not None:
                self.late.cancel()
                self.late = None

        def _end(self) -> None:
            self.late = None
            if self.conn.their_state is h11.IDLE:
                self.transport.close()

    return Limited


def _refusal(sentence: str) -> bytes:
    body = json.dumps({"detail": sentence}).encode()
    head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
