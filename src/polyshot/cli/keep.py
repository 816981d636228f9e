"""The commands for a classifier that was kept: check, correct, export and serve it."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from typer import Argument, Option

from polyshot.cli.options import Device, PoolName, Sites, Strict, ViewsName, names_in
from polyshot.errors import PolyshotError

Model = Annotated[Path, Argument(help="A classifier that 'polyshot fit' wrote: birds.polyshot.")]


def check(
    model: Model,
    most: Annotated[int, Option(min=1, help="Suspects to show at most.")] = 20,
) -> None:
    """Check a classifier: its expected accuracy, suspicious examples, whether more would help.

    Example: polyshot check birds.polyshot
    """
    from polyshot.classifier.classifier import FewShotClassifier
    from polyshot.classifier.label import count_examples
    from polyshot.cli.display import show_table

    loaded = FewShotClassifier.load(model)
    counts = count_examples(loaded)
    typer.echo(f"{model}: {len(counts)} classes, {sum(counts.values())} examples")
    show_table(("class", "examples"), [(str(name), count) for name, count in counts.items()])
    if not loaded.can_estimate:
        typer.echo("No class has two examples, so that nothing can be checked by the others.")
        return
    typer.echo(loaded.estimate())
    curve = loaded.curve()
    rows = zip(curve.shots, curve.accuracy, curve.low, curve.high, strict=True)
    show_table(
        ("examples of a class", "accuracy", "95 % interval"),
        [(shot, f"{mean:.0%}", f"{low:.0%} to {high:.0%}") for shot, mean, low, high in rows],
    )
    typer.echo(curve)
    suspects = loaded.suspects()
    if not suspects:
        typer.echo("No example looks mislabelled.")
        return
    typer.echo(f"Examples that look mislabelled, or are odd ones: {len(suspects)}")
    lines = []
    for each in suspects[:most]:
        chances = (f"{each.probability:.2f}", f"{each.own_probability:.2f}")
        lines.append((each.example, each.name, each.label, each.likely, *chances))
    columns = ("number", "example", "label", "looks like", "probability", "of its label")
    show_table(columns, lines)
    first = quote(f"{suspects[0].example}={suspects[0].likely}")
    typer.echo(f"polyshot correct {model} --relabel {first}")


def suggest(
    model: Model,
    query: Annotated[
        list[Path], Option(help="Unlabelled images: files or folders; may be repeated.")
    ],
    count: Annotated[int, Option(min=1, help="How many to suggest.")] = 10,
    strict: Strict = False,
    device: Device = None,
) -> None:
    """Suggest which images to label next: those whose labels would help most come first.

    Example: polyshot suggest birds.polyshot --query new/
    """
    from polyshot.classifier.classifier import FewShotClassifier
    from polyshot.classifier.label import check_queries
    from polyshot.cli.display import progress, show_table, warn
    from polyshot.data.images import cannot_read
    from polyshot.util.device import best_device

    paths = check_queries(query, strict)
    loaded = FewShotClassifier.load(model, best_device(device))
    with progress("images") as report:
        images = loaded.read(paths, report)
    if images.bad:
        warn(str(cannot_read(images)))
    order = loaded.next_to_label(images, count)
    paths = [paths[i] for i in images.places]
    lines = []
    for each in order:
        other = (each.runner_up, f"{each.runner_up_probability:.2f}")
        lines.append((paths[each.image], each.label, f"{each.probability:.2f}", *other))
    show_table(("image", "perhaps", "probability", "or", "its probability"), lines)
    typer.echo(f"Sort them into folders, more/<label>/: polyshot correct {model} --add more/")


def correct(
    model: Model,
    add: Annotated[
        Path | None, Option(help="Further examples: a folder for each class, or a CSV.")
    ] = None,
    relabel: Annotated[
        list[str] | None,
        Option(help="EXAMPLE=LABEL, by name or number, as 'check' shows it; may be repeated."),
    ] = None,
    drop: Annotated[
        list[str] | None, Option(help="An example to leave out, by name or number.")
    ] = None,
    forget: Annotated[list[str] | None, Option(help="A class to leave out.")] = None,
    out: Annotated[Path | None, Option(help="Write it there, not in the place of MODEL.")] = None,
    strict: Strict = False,
    device: Device = None,
) -> None:
    """Correct a classifier: relabel or drop examples, forget classes, add examples, in this order.

    Example: polyshot correct birds.polyshot --relabel 'photos/cat/3.jpg=dog' --add more/
    """
    from polyshot.classifier.classifier import FewShotClassifier
    from polyshot.classifier.label import correct_by_files
    from polyshot.cli.display import progress, warn_left_out
    from polyshot.util.device import best_device
    from polyshot.util.files import check_writable

    check_writable(out)
    loaded = FewShotClassifier.load(model, best_device(device))
    with progress("images") as report:
        changes = (relabel or (), drop or (), forget or (), add)
        left_out = correct_by_files(loaded, *changes, report, strict)
    warn_left_out(left_out)
    place = out or model
    loaded.save(place)
    if loaded.can_estimate:
        typer.echo(loaded.estimate())
    typer.echo(f"wrote {place}: {len(loaded.classes_)} classes")


def export(
    model: Annotated[Path, Argument(help="A classifier that 'polyshot fit' wrote.")],
    out: Annotated[Path, Argument(help="Where to write it: birds.onnx.")],
    half: Annotated[
        bool,
        Option("--half", help="Let its networks compute in half precision, as GPUs like it."),
    ] = False,
) -> None:
    r"""Write a classifier as an ONNX file, for programs without Polyshot and without PyTorch.

    ONNX Runtime answers before it is written, and how far it lies from PyTorch is printed. Needs
    the extra: pip install 'polyshot\[onnx]'.

    Example: polyshot export birds.polyshot birds.onnx
    """
    from polyshot.classifier.classifier import FewShotClassifier
    from polyshot.util.files import check_writable

    check_writable(out)
    loaded = FewShotClassifier.load(model)
    made = loaded.export(out, half)
    inputs = ", ".join(f"{name} uint8 [n, {side}, {side}, 3]" for name, side in made.inputs.items())
    typer.echo(f"wrote {out}: {len(loaded.classes_)} classes, {made.size / 1e6:.1f} MB; {inputs}")
    typer.echo(made)


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
    sites: Sites = "",
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
    pools, form = load_pools(pool, best_device(device), views, names_in(sites))
    if form:
        typer.echo(f"Form: {form}")
    limits = Limits() if memory is None else Limits(memory_bytes=int(memory * GIB))
    run(folder, lambda: FewShotClassifier(pools), host, port, token, model, typer.echo, limits)
