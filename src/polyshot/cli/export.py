"""The command that takes a classifier elsewhere."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option


def export(
    model: Annotated[Path, Argument(help="A classifier that 'polyshot fit' wrote.")],
    out: Annotated[Path, Argument(help="Where to write it: birds.onnx.")],
    half: Annotated[
        bool,
        Option("--half", help="Let its networks compute in half precision, as GPUs like it."),
    ] = False,
) -> None:
    """Write a classifier as an ONNX file, for programs without Polyshot and without PyTorch.

    ONNX Runtime answers before it is written, and how far it lies from PyTorch is printed. Needs
    the extra: pip install 'polyshot[onnx]'.

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
