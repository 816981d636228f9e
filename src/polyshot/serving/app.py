"""The application: routes behind the guard, the page's files, health and metrics."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from polyshot.errors import PolyshotError
from polyshot.serving.asking import asking_routes
from polyshot.serving.guard import Guard
from polyshot.serving.limits import RefusedError
from polyshot.serving.routes import PROBLEMS, project_routes
from polyshot.serving.schemas import EncodedImages, Health, Session
from polyshot.serving.service import Service
from polyshot.util import __version__

PAGE = Path(__file__).parent / "page"


def make_app(service: Service, host: str = "127.0.0.1", token: str | None = None) -> ASGIApp:
    """Make the application; it closes the service when it is shut down."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    # No pages of documentation: they would fetch scripts from elsewhere.
    app = FastAPI(
        title="Polyshot",
        version=__version__,
        description="Teach and ask few-shot image classifiers.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    guard = Guard(app, service.limits, service.metrics, service.memory, host, token)
    _handle_errors(app)
    app.include_router(project_routes(service))
    app.include_router(asking_routes(service))

    @app.get("/healthz", tags=["service"])
    def healthz() -> Health:
        """Say that the service is there."""
        return Health(status="ok", version=__version__, token=token is not None)

    @app.get("/metrics", tags=["service"], response_class=PlainTextResponse)
    def metrics() -> str:
        """Count requests, images, batches and fits, for Prometheus."""
        return service.metrics.text(
            queue=len(service.batcher),
            projects=len(service.store.projects()),
            disk_bytes=service.store.disk_bytes(),
            memory_bytes=service.memory.taken(),
        )

    @app.post("/api/session", status_code=204, tags=["service"], responses=PROBLEMS)
    def session(given: Session, response: Response) -> None:
        """Exchange the token for a cookie, which images and events need in the page."""
        if not guard.allows(given.token):
            raise RefusedError(401, "This is not the token that polyshot serve was given.")
        if token is not None:
            response.set_cookie(guard.cookie, token, httponly=True, samesite="strict")

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    app.mount("/page", StaticFiles(directory=PAGE))

    def schema() -> dict[str, object]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            # Named by the bodies of uploads, which are read by hand.
            own = EncodedImages.model_json_schema(ref_template="#/components/schemas/{model}")
            made["components"]["schemas"] |= {**own.pop("$defs"), "EncodedImages": own}
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = schema  # type: ignore[method-assign]
    return guard


def _handle_errors(app: FastAPI) -> None:
    """Let every refusal be a status and a sentence."""

    @app.exception_handler(RefusedError)
    def refused(_: Request, error: RefusedError) -> JSONResponse:
        return JSONResponse({"detail": error.sentence}, error.status)

    @app.exception_handler(PolyshotError)
    def bad(_: Request, error: PolyshotError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 409)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return JSONResponse({"detail": f"{where}: {first['msg']}."}, 422)

    @app.exception_handler(HTTPException)
    def other(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"detail": str(error.detail)}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    def unexpected(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": f"It went wrong ({type(error).__name__})."}, 500)
