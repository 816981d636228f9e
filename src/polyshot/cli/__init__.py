"""The command line: one typed function a command, no logic.

Heavy modules are imported inside the commands, so that ``--help`` answers at once. What
all commands share is here: errors in one line, and no library's cache in the user's home.
"""

import errno
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Annotated, NoReturn

import typer
from typer import Option

from polyshot.cli import experiments
from polyshot.cli import train as training
from polyshot.cli.classify import classify, example, fit
from polyshot.cli.data import data
from polyshot.cli.evaluate import evaluate
from polyshot.cli.keep import check, correct, export, serve, suggest
from polyshot.cli.pool import pools
from polyshot.errors import ESCAPED, PolyshotError, is_short_of_memory, one_line
from polyshot.util import __version__
from polyshot.util.memory import keep_freed

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
        _show_any_name()
        _check_empty(sys.argv[1:] if arguments is None else arguments)
        keep_freed()
        with torch_undisturbed(), matplotlib_apart():
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


def _show_any_name() -> None:
    """Let names that the terminal's encoding has not be shown escaped, as everywhere."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ESCAPED)


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


@contextmanager
def torch_undisturbed() -> Iterator[None]:
    """Hold Ctrl-C back while a command imports torch, which aborts the process in its midst."""
    finder = _BeforeTorch()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.leave()


class _BeforeTorch(MetaPathFinder):
    """Finds torch where others find it, and lets it be imported to the end."""

    def leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != "torch":
            return None
        self.leave()
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def whole(module: ModuleType) -> None:
                from polyshot.util.files import undisturbed

                with undisturbed():
                    execute(module)

            spec.loader.exec_module = whole  # type: ignore[method-assign]
        return spec


@contextmanager
def matplotlib_apart() -> Iterator[None]:
    """Give matplotlib, where a command imports it, a folder that goes when the command ends.

    It would write a list of the system's fonts into the home; ours come along with it.
    """
    with ExitStack() as stack:
        finder = _BeforeMatplotlib(stack)
        sys.meta_path.insert(0, finder)
        stack.callback(sys.meta_path.remove, finder)
        yield


class _BeforeMatplotlib(MetaPathFinder):
    """Finds nothing, but prepares for matplotlib when it is looked for."""

    def __init__(self, stack: ExitStack):
        self.stack, self.done = stack, False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        wanted = fullname in ("matplotlib", "matplotlib.font_manager")
        if wanted and not self.done and "MPLCONFIGDIR" not in os.environ:
            from polyshot.util.scratch import scratch_folder

            self.done = True
            folder = self.stack.enter_context(scratch_folder())
            os.environ["MPLCONFIGDIR"] = str(folder)
            os.environ["MPL_IGNORE_SYSTEM_FONTS"] = "1"
            for name in ("MPLCONFIGDIR", "MPL_IGNORE_SYSTEM_FONTS"):
                self.stack.callback(os.environ.pop, name, None)
        return None
