"""The routes of what is learned and answered, and of what a user takes away.

Fits, predictions, what to label next; labels, the classifier's file, its ONNX.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from polyshot.serving.learning import ENDED, JobInfo
from polyshot.serving.limits import RefusedError
from polyshot.serving.routes import PROBLEMS, ProjectId
from polyshot.serving.schemas import BODY, Answers, Problem, read_uploads
from polyshot.serving.service import DOUBTFUL, Service, at_rate, described
from polyshot.util.scratch import scratch_folder

Rate = Annotated[float | None, Query(gt=0, lt=1)]


def asking_routes(service: Service) -> APIRouter:
    """Make the routes."""
    routes = APIRouter(prefix="/api/projects/{project}", responses=PROBLEMS)
    store, learner = service.store, service.learner

    @routes.post("/fit", status_code=202, tags=["fit"])
    def start_fit(project: ProjectId) -> JobInfo:
        """Learn from the examples, as a job; one that runs is left and begun anew."""
        return learner.start(project)

    @routes.get("/fit", tags=["fit"])
    def get_fit(project: ProjectId) -> JobInfo:
        """Say how far the latest job is."""
        store.project(project)
        return learner.job(project)

    @routes.delete("/fit", tags=["fit"])
    def cancel_fit(project: ProjectId) -> JobInfo:
        """Cancel the job; what was learned before stays."""
        store.project(project)
        return learner.cancel(project)

    @routes.get(
        "/fit/events",
        tags=["fit"],
        response_class=Response,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def fit_events(project: ProjectId) -> StreamingResponse:
        """Tell the job's progress as server-sent events, until it has ended."""
        await asyncio.to_thread(store.project, project)
        job = learner.job(project)
        if service.streams >= service.limits.streams:
            raise RefusedError(429, "Many are listening already: ask again later.")
        return StreamingResponse(_events(service, project, job), media_type="text/event-stream")

    @routes.post(
        "/predict",
        tags=["predict"],
        openapi_extra=BODY,
        responses={400: {"model": Problem}, 415: {"model": Problem}},
    )
    async def predict(project: ProjectId, request: Request, none_rate: Rate = None) -> Answers:
        """Classify images, which are not kept.

        With `none_rate`, images far from every class are `none of these`: the share of images of
        the classes themselves that may be, by mistake.
        """
        classifier = await asyncio.to_thread(learner.classifier, project)
        uploads = await read_uploads(request, service.limits)
        if len(service.batcher) + len(uploads) > service.limits.queue:
            raise RefusedError(429, "Many images wait to be classified: ask again later.")
        found = await asyncio.gather(*(service.answer_upload(classifier, each) for each in uploads))
        every = len(classifier.classes_)
        rows = zip(uploads, found, strict=True)
        return Answers(
            answers=[
                described(classifier, one, up.file, None, none_rate, every) for up, one in rows
            ],
            members=_members(service, project),
        )

    @routes.get("/answers", tags=["predict"])
    async def answers(
        project: ProjectId,
        none_rate: Rate = None,
        after: Annotated[int, Query(ge=0, le=2**53)] = 0,
        count: Annotated[int, Query(ge=1, le=1000)] = 200,
    ) -> Answers:
        """Classify the images of the project that have no label."""
        images = await asyncio.to_thread(store.images, project, False, after, count)
        found = await service.answer_kept(project, images)
        return Answers(
            answers=[at_rate(each, none_rate) for each in found],
            members=_members(service, project),
        )

    @routes.get("/next", tags=["predict"])
    async def next_to_label(
        project: ProjectId, count: Annotated[int, Query(ge=1, le=DOUBTFUL)] = 10
    ) -> list[int]:
        """Name the images without a label whose labels would help most, these first."""
        return await service.next_to_label(project, count)

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


async def _events(service: Service, project: str, job: JobInfo | None) -> AsyncIterator[str]:
    """Tell each change of a job until it has ended, or until its project is deleted."""
    service.streams += 1
    try:
        seen, quiet = None, 0
        while job is not None:
            if job != seen:
                yield f"data: {json.dumps(asdict(job))}\n\n"
                seen, quiet = job, 0
            if job.state in ENDED:
                return
            await asyncio.sleep(0.1)
            quiet += 1
            if quiet % 100 == 0:
                yield ": still there\n\n"
            job = service.learner.find(project)
    finally:
        service.streams -= 1


def _members(service: Service, project: str) -> list[dict[str, Any]]:
    report = service.learner.report(project)
    return [] if report is None else list(report["members"])


def _download(data: bytes, name: str, kind: str) -> Response:
    """Return a file that is saved, never shown."""
    disposition = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
    return Response(data, media_type=kind, headers={"content-disposition": disposition})
