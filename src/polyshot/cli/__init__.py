"""The command line: one typed function a command, no logic.

Heavy modules are imported inside the commands, so that ``--help`` answers at once.
"""

import errno
import sys
from typing import Annotated, NoReturn

import typer
from typer import Option

from polyshot.cli import experiments
from polyshot.cli import train as training
from polyshot.cli.apart import matplotlib_apart
from polyshot.cli.classify import classify, example, fit
from polyshot.cli.data import data
from polyshot.cli.evaluate import evaluate
from polyshot.cli.export import export
from polyshot.cli.keep import check, correct, suggest
from polyshot.cli.pool import pools
from polyshot.cli.serve import serve
from polyshot.errors import PolyshotError, is_short_of_memory, one_line
from polyshot.util import __version__

app = typer.Typer(
    help="Classify images from a handful of examples per class, in any visual domain.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data, name="data")
app.add_typer(pools, name="pool")
for command in (
    *(example, fit, classify, check, correct, suggest, export, serve, evaluate),
    *(training.demo, training.train, training.info, training.card),
    *(experiments.methods, experiments.tune, experiments.reproduce, experiments.report),
):
    app.command()(command)

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the program: bad input is one line and exit code 2, Ctrl-C is one and exit code 130."""
    try:
        _check_empty(sys.argv[1:] if arguments is None else arguments)
        with matplotlib_apart():
            app(arguments)
    except PolyshotError as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        _say_interrupted()
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer has caught it
            _say_interrupted()
        raise
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        if isinstance(error, OSError) and error.strerror and error.errno != errno.ENOMEM:
            _refuse(one_line(f"{error.filename or 'The system'}: {error.strerror}."))
        if not is_short_of_memory(error):
            raise
        _refuse("The memory is too small for this: end other programs, or ask for less at once.")
    sys.exit(0)


def _check_empty(arguments: list[str]) -> None:
    """Refuse an empty argument: it is an unset variable, and as a path it would be this folder."""
    for before, each in zip(["", *arguments], arguments, strict=False):
        option = each.removesuffix("=") if each.startswith("--") and each.endswith("=") else ""
        if not each.strip() or option:
            what = option or (before if before.startswith("-") else "An argument")
            raise PolyshotError(f"{what} is empty: give it a value; perhaps a variable is unset.")


def _refuse(reason: str) -> NoReturn:
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(reason, err=True)
    sys.exit(2)


def _say_interrupted() -> NoReturn:
    typer.echo("Interrupted.", err=True)
    sys.exit(INTERRUPTED)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"polyshot {__version__}")
        raise typer.Exit


@app.callback()
def polyshot(
    version: Annotated[
        bool,
        Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Classify images from a handful of examples per class, in any visual domain."""


@app.command()
def doctor() -> None:
    """Check the installation: versions, device, memory, extras, and whether bf16 really works."""
    from rich.text import Text

    from polyshot.cli.display import show_table
    from polyshot.cli.doctor import examine

    checks = examine()
    colours = {"ok": "green", "note": "yellow", "bad": "red"}
    rows = [(each.what, Text(each.verdict, colours[each.verdict]), each.found) for each in checks]
    show_table(("what", "", "found"), rows)
    if any(check.verdict == "bad" for check in checks):
        raise PolyshotError("the installation is not complete, see the lines marked 'bad'.")
