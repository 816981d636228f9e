"""The routes of projects, classes and images."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from polyshot.serving.limits import RefusedError
from polyshot.serving.records import Kept, Picture
from polyshot.serving.schemas import (
    BODY,
    ImageInfo,
    Labelled,
    Name,
    Named,
    Problem,
    ProjectInfo,
    Refusal,
    Upload,
    Uploaded,
    read_uploads,
)
from polyshot.serving.service import Service

PROBLEMS: dict[int | str, dict[str, object]] = {
    code: {"model": Problem} for code in (401, 403, 404, 408, 409, 413, 422, 429, 500, 503, 507)
}
"""What any route may answer, with a sentence."""
ProjectId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
ImageId = Annotated[int, Path(ge=1, le=2**53)]
ClassName = Annotated[str, Path(min_length=1, max_length=100)]


def project_routes(service: Service) -> APIRouter:
    """Make the routes."""
    routes = APIRouter(prefix="/api/projects", responses=PROBLEMS)
    store = service.store

    @routes.get("", tags=["projects"])
    def list_projects() -> list[ProjectInfo]:
        """List all projects."""
        return [service.about(each) for each in store.projects()]

    @routes.post("", status_code=201, tags=["projects"])
    def add_project(given: Named) -> ProjectInfo:
        """Make an empty project."""
        return service.about(store.add_project(given.name))

    @routes.get("/{project}", tags=["projects"])
    def get_project(project: ProjectId) -> ProjectInfo:
        """Describe a project: classes, counts, and what its last fit found out."""
        return service.about(store.project(project))

    @routes.patch("/{project}", tags=["projects"])
    def rename_project(project: ProjectId, given: Named) -> ProjectInfo:
        """Give a project another name."""
        store.rename_project(project, given.name)
        return service.about(store.project(project))

    @routes.delete("/{project}", status_code=204, tags=["projects"])
    def delete_project(project: ProjectId) -> None:
        """Delete a project with its images and its classifier."""
        service.delete(project)

    @routes.post("/{project}/classes", status_code=201, tags=["classes"])
    def add_class(project: ProjectId, given: Named) -> ProjectInfo:
        """Name a class; one that is there stays as it is."""
        store.add_class(project, given.name)
        return service.about(store.project(project))

    @routes.patch("/{project}/classes/{name:path}", tags=["classes"])
    def rename_class(project: ProjectId, name: ClassName, given: Named) -> ProjectInfo:
        """Give a class another name."""
        store.rename_class(project, name, given.name)
        return service.about(store.project(project))

    @routes.delete("/{project}/classes/{name:path}", status_code=204, tags=["classes"])
    def delete_class(project: ProjectId, name: ClassName) -> None:
        """Delete a class with its examples."""
        store.delete_class(project, name)

    @routes.get("/{project}/images", tags=["images"])
    def list_images(
        project: ProjectId,
        labelled: bool | None = None,
        after: Annotated[int, Query(ge=0, le=2**53)] = 0,
        count: Annotated[int, Query(ge=1, le=20_000)] = 1000,
    ) -> list[ImageInfo]:
        """List images: all, the labelled ones (the examples), or the others."""
        store.project(project)
        return [_info(each) for each in store.images(project, labelled, after, count)]

    @routes.post(
        "/{project}/images",
        status_code=201,
        tags=["images"],
        openapi_extra=BODY,
        responses={400: {"model": Problem}, 415: {"model": Problem}},
    )
    async def add_images(
        project: ProjectId, request: Request, label: Annotated[Name | None, Query()] = None
    ) -> Uploaded:
        """Keep images, as examples of a class where a label is given.

        Those that are in the answer are on the disk. Where some cannot be read the others are kept.
        """
        await asyncio.to_thread(store.project, project)
        uploads = await read_uploads(request, service.limits)
        decoded = await asyncio.gather(
            *(asyncio.to_thread(_decoded, service, each) for each in uploads)
        )
        pairs = list(zip(uploads, decoded, strict=True))
        done = await asyncio.to_thread(lambda: [_kept(service, project, label, *p) for p in pairs])
        kept = [one for one in done if isinstance(one, Kept)]
        bad = [
            (up, one) for up, one in zip(uploads, done, strict=True) if not isinstance(one, Kept)
        ]
        if not kept:
            raise bad[0][1]
        return Uploaded(
            images=[_info(each) for each in kept],
            refused=[Refusal(file=up.file, detail=one.sentence) for up, one in bad],
        )

    @routes.patch("/{project}/images/{image}", tags=["images"])
    def label_image(project: ProjectId, image: ImageId, given: Labelled) -> ImageInfo:
        """Give an image a label, another one, or none."""
        return _info(store.label_image(project, image, given.label))

    @routes.delete("/{project}/images/{image}", status_code=204, tags=["images"])
    def delete_image(project: ProjectId, image: ImageId) -> None:
        """Delete an image."""
        store.delete_image(project, image)

    @routes.get(
        "/{project}/images/{image}/thumbnail",
        tags=["images"],
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}}}},
    )
    def get_thumbnail(project: ProjectId, image: ImageId) -> Response:
        """Return a small JPEG of an image, made by the service."""
        return Response(
            store.read(project, store.image(project, image), "thumbnails"),
            media_type="image/jpeg",
            headers={"cache-control": "private, max-age=31536000, immutable"},
        )

    return routes


def _decoded(service: Service, upload: Upload) -> Picture | RefusedError:
    """Decode an image; a refusal is returned, for the others of the request go on."""
    try:
        return service.picture(upload)
    except RefusedError as refused:
        return refused


def _kept(
    service: Service,
    project: str,
    label: str | None,
    upload: Upload,
    decoded: Picture | RefusedError,
) -> Kept | RefusedError:
    if isinstance(decoded, RefusedError):
        return decoded
    try:
        return service.store.add_image(project, decoded, upload.file, label)
    except RefusedError as refused:
        return refused


def _info(image: Kept) -> ImageInfo:
    return ImageInfo(id=image.id, file=image.file, label=image.label)
