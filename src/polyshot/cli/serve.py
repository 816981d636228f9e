"""The command that opens the page in the browser and the HTTP service."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from polyshot.cli.options import Device, PoolName, ViewsName
from polyshot.errors import PolyshotError


def serve(
    model: Annotated[
        Path | None, Argument(help="A classifier that 'polyshot fit' wrote, to go on from.")
    ] = None,
    port: Annotated[int, Option(min=0, max=65535, help="0 takes any that is free.")] = 8000,
    host: Annotated[str, Option(help="Another address needs a --token.")] = "127.0.0.1",
    token: Annotated[
        str | None,
        Option(envvar="POLYSHOT_TOKEN", help="Who asks must know it: 16 letters or more."),
    ] = None,
    folder: Annotated[
        Path, Option(help="Where projects are kept: images, labels, classifiers.")
    ] = Path("polyshot-projects"),
    memory: Annotated[
        float | None,
        Option(min=0.5, help="GiB that it may take; 8, or 3/4 of the machine's, if not given."),
    ] = None,
    pool: PoolName = "default",
    views: ViewsName = None,
    device: Device = None,
) -> None:
    """Open a page to teach classifiers by hand and to use them, and serve them over HTTP.

    Example: polyshot serve birds.polyshot
    """
    from polyshot.util.device import best_device

    try:
        from polyshot.serving.limits import GIB, Limits
        from polyshot.serving.run import check_address
        from polyshot.serving.run import serve as run
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn", "starlette", "pydantic"):
            raise
        raise PolyshotError(
            f"The page needs {error.name}: pip install 'polyshot[serve]'."
        ) from None
    from polyshot.classifier import FewShotClassifier
    from polyshot.pool.forms import load_pools

    check_address(host, token)
    pools, form = load_pools(pool, best_device(device), views)
    if form:
        typer.echo(f"Form: {form}")
    limits = Limits() if memory is None else Limits(memory_bytes=int(memory * GIB))
    run(folder, lambda: FewShotClassifier(pools), host, port, token, model, typer.echo, limits)
