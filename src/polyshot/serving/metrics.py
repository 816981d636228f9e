"""Counters of the service, as Prometheus reads them at /metrics."""

import threading
from collections import defaultdict

HELP = {
    "requests_total": "Requests answered, by status.",
    "images_total": "Images classified.",
    "batches_total": "Batches in which they were.",
    "refused_images_total": "Uploads that could not be decoded.",
    "fits_total": "Fits that ended, by outcome.",
    "request_seconds_total": "Time spent on requests.",
    "queue": "Images that wait to be classified.",
    "projects": "Projects that are kept.",
    "disk_bytes": "What the images of all projects take.",
    "memory_bytes": "What the service has in memory, and what running requests may still take.",
}


class Metrics:
    """Named numbers that only grow; threads may share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[tuple[str, str], float] = defaultdict(float)

    def add(self, name: str, amount: float = 1, label: str = "") -> None:
        """Count something; `label` as ``status="200"``."""
        with self._lock:
            self._counts[name, label] += amount

    def text(self, **gauges: float) -> str:
        """Return all of them, and gauges that are read now, in Prometheus' text format."""
        with self._lock:
            known = dict(self._counts)
        known |= {(name, ""): value for name, value in gauges.items()}
        lines = []
        for name, about in HELP.items():
            kind = "gauge" if name in gauges else "counter"
            lines += [f"# HELP polyshot_{name} {about}", f"# TYPE polyshot_{name} {kind}"]
            found = {label: value for (own, label), value in sorted(known.items()) if own == name}
            for label, value in (found or {"": 0}).items():
                lines.append(f"polyshot_{name}{'{' + label + '}' if label else ''} {value:g}")
        return "\n".join(lines) + "\n"
