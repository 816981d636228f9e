"""How clients connect: only so many at once, and none that never says what it wants."""

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from polyshot.serving.limits import Limits


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
