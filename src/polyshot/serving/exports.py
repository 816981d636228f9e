"""The routes of what a user takes away: labels, the classifier's file, its ONNX."""

import asyncio
from urllib.parse import quote

from fastapi import APIRouter, Response

from polyshot.serving.limits import RefusedError
from polyshot.serving.routes import PROBLEMS, ProjectId
from polyshot.serving.service import Service
from polyshot.util.scratch import scratch_folder


def export_routes(service: Service) -> APIRouter:
    """Make the routes."""
    routes = APIRouter(prefix="/api/projects/{project}", responses=PROBLEMS)
    store, learner = service.store, service.learner

    @routes.get(
        "/export/{what}",
        tags=["export"],
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}, "text/csv": {}}}},
    )
    async def export(project: ProjectId, what: str) -> Response:
        """Download `labels.csv`, `classifier.polyshot` or `classifier.onnx`."""
        known = await asyncio.to_thread(store.project, project)
        if what == "labels.csv":
            text = await service.labels_csv(project)
            return _download(text.encode(), f"{known.name}.csv", "text/csv; charset=utf-8")
        if what not in ("classifier.polyshot", "classifier.onnx"):
            raise RefusedError(
                404, "There are labels.csv, classifier.polyshot and classifier.onnx to export."
            )
        classifier = await asyncio.to_thread(learner.classifier, project)
        ending = what.rpartition(".")[2]

        def write() -> bytes:
            with scratch_folder() as folder:
                path = folder / what
                if ending == "onnx":
                    classifier.export(path)
                else:
                    classifier.save(path)
                return path.read_bytes()

        data = await asyncio.to_thread(write)
        return _download(data, f"{known.name}.{ending}", "application/octet-stream")

    return routes


def _download(data: bytes, name: str, kind: str) -> Response:
    """Return a file that is saved, never shown."""
    disposition = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
    return Response(data, media_type=kind, headers={"content-disposition": disposition})
