"""Commands about experiments: list methods, tune them, reproduce the paper's tables, report."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from polyshot.cli.options import (
    MOST_EPISODES,
    Address,
    Device,
    EngineName,
    Gpus,
    Preset,
    StoreUrl,
    Threads,
    names_in,
)
from polyshot.errors import PolyshotError

Data = Annotated[
    Path | None,
    Option(help="A folder of packs; without one, some embedded domains are drawn into OUT/packs."),
]
Out = Annotated[Path, Option(help="The grid's folder; what is there is not done again.")]
Sources = Annotated[
    str, Option(help="Domains to train on: a,b,c; all that have training classes if not given.")
]
Options = Annotated[
    list[str] | None,
    Option(
        "--set",
        help="Override an option of the preset (base.steps=100) or of a method "
        "(protonet.learning_rate=0.001).",
    ),
]


def methods() -> None:
    """List every method and every rule of pools, each with its paper and one line."""
    from polyshot.cli.display import show_table
    from polyshot.methods.method import find_methods
    from polyshot.predict.rules import RULES

    found = find_methods()
    rows = [(one.name, one.about, ", ".join(one.adaptations), one.paper) for one in found]
    show_table(("method", "what it does", "adaptations", "paper"), rows)
    show_table(("rule", "what it does"), [(rule.name, rule.about) for rule in RULES.values()])


def reproduce(
    context: typer.Context,
    names: Annotated[
        list[str],
        Argument(
            help="Experiments: seen, unseen, sources-2, sources-4, sources-6, contributions, "
            "parameters, added, joint, one-source."
        ),
    ],
    data: Data = None,
    preset: Preset = "strong",
    out: Out = Path("grid"),
    methods: Annotated[str, Option(help="Methods: a,b,c; all if not given.")] = "",
    targets: Annotated[
        str,
        Option(
            help="Domains to test on: a,b,c; all if not given. Of 'added': domains to add, each "
            "tested on all."
        ),
    ] = "",
    sources: Sources = "",
    seeds: Annotated[
        int, Option(help="Trainings of everything, seeds 0, 1, ...; --set seed=1 starts at 1.")
    ] = 1,
    episodes: Annotated[
        int | None,
        Option(max=MOST_EPISODES, help="Episodes of each cell; 100 with tiny, else 600."),
    ] = None,
    slow_episodes: Annotated[
        int | None,
        Option(
            help="Episodes where whole networks are learned on support sets; 5 with tiny, else "
            "as many as of the others."
        ),
    ] = None,
    shots: Annotated[str, Option(help="Support images of each class.")] = "5,1",
    no_adapt: Annotated[bool, Option("--no-adapt", help="Leave further adaptation out.")] = False,
    beyond: Annotated[
        bool,
        Option(
            "--beyond", help="Also methods and adaptations that the paper does not have: auto, tsa."
        ),
    ] = False,
    adaptations: Annotated[
        str, Option(help="Only these adaptations: none,head,pa,tsa,steps-100.")
    ] = "",
    part: Annotated[
        str,
        Option(
            help="Classes of the targets to measure on: test, or val to make choices on; domains "
            "without such classes are left out."
        ),
    ] = "test",
    settings: Options = None,
    device: Device = None,
    processes: Annotated[
        int | None,
        Option(
            max=256,
            help="Processes that share the work: one a core on a CPU, 4 at most; 1 on a GPU.",
        ),
    ] = None,
    engine: EngineName = "local",
    address: Address = "",
    threads: Threads = 1,
    gpus: Gpus = None,
    store: StoreUrl = "",
    helper: Annotated[str, Option(hidden=True)] = "",
) -> None:
    """Repeat the paper's tables and figures: run what is missing, and nothing twice.

    It can be interrupted, and run by several processes on one folder. Ends with exit code 1 if
    cells failed; they are tried again the next time. 'polyshot report' makes a page of the folder.

    Example: polyshot reproduce seen unseen --data packs --preset strong --out grid
    """
    from polyshot.cli.display import progress, show_table
    from polyshot.engines import chosen_engine
    from polyshot.engines.local import Helper, helped, lost, process_count
    from polyshot.experiments import protocols, run
    from polyshot.experiments.grid_folder import grid_packs
    from polyshot.experiments.report.paper import size_table
    from polyshot.experiments.request import Request

    wanted = protocols.find_protocols(names)
    if any(protocol.kind == "parameters" for protocol in wanted):
        sizes = size_table()
        show_table(sizes.head, sizes.rows)
    measured = [protocol.name for protocol in wanted if protocol.kind != "parameters"]
    if not measured:
        return
    config, overrides, chosen = protocols.configured(preset, settings or [])
    usual, slow = protocols.default_episodes(preset)
    request = Request(
        measured,
        methods=names_in(methods),
        targets=names_in(targets),
        seeds=seeds,
        episodes=usual if episodes is None else episodes,
        slow_episodes=slow if slow_episodes is None else slow_episodes,
        shapes=protocols.shapes_of(names_in(shots)),
        adapt=not no_adapt,
        beyond=beyond,
        adaptations=list(dict.fromkeys(names_in(adaptations))),
        part=part,
        overrides=overrides,
        options=chosen,
    )
    request.check_options()
    if data is None:
        request.check_targets(protocols.embedded_names())
    own = Helper.of(helper) if helper else None
    command = _command(context)
    with (
        progress("images", whole=run.BAR) as report,
        chosen_engine(engine, device, address, threads, gpus, store, processes) as (runs, each),
    ):
        trained, others = grid_packs(out, data, names_in(sources), config.size, report)
        together = process_count(processes, runs.device) if engine == "local" else 1
        with helped(1 if own else together, shlex.split(command)[1:]) as helpers:
            how = (own.report, "", own.offset) if own else (report, command, 0.0)
            done = run.reproduce(request, trained, others, config, out, runs, *how, each)
            gone = lost(helpers)
    typer.echo(str(done))
    if gone:
        typer.echo(
            f"{gone} of {together} processes ended early, perhaps for want of memory; this one did "
            "their work. --processes 1 asks for none.",
            err=True,
        )
    if done.failed:
        typer.echo(f"Errors are in {out / 'failures'}; the same command tries again.", err=True)
        raise typer.Exit(1)
    typer.echo(f"For the tables: polyshot report {out}")


def tune(
    context: typer.Context,
    names: Annotated[
        list[str] | None, Argument(help="Methods; all that have a grid if not given.")
    ] = None,
    data: Data = None,
    preset: Preset = "strong",
    out: Out = Path("grid"),
    sources: Sources = "",
    settings: Options = None,
    device: Device = None,
    engine: EngineName = "local",
    address: Address = "",
    threads: Threads = 1,
    gpus: Gpus = None,
    store: StoreUrl = "",
) -> None:
    """Try the declared settings of methods on validation classes of the sources.

    The outcome is in OUT/tuned.json. Points that were tried are not tried again.

    Example: polyshot tune protonet feat --data packs --preset strong --out grid
    """
    from polyshot.cli.display import progress, show_table
    from polyshot.engines import chosen_engine
    from polyshot.experiments import tune as tuning
    from polyshot.experiments.grid_folder import grid_packs
    from polyshot.experiments.protocols import configured

    config, overrides, _ = configured(preset, settings or [])
    if overrides:
        raise PolyshotError("Tuning tries the declared settings of methods: leave theirs out.")
    tuning.tunable(names or [])  # refuses, before domains are drawn
    with (
        progress("images", whole=tuning.BAR) as report,
        chosen_engine(engine, device, address, threads, gpus, store) as (runs, each),
    ):
        trained, _ = grid_packs(out, data, names_in(sources), config.size, report)
        how = (runs, report, _command(context), each)
        points = tuning.tune(names or [], trained, config, out, *how)
    rows = []
    for point in points:
        tried = ", ".join(f"{name} {value:g}" for name, value in point.settings.items())
        chosen = "chosen" if point.best else ""
        rows.append((point.method, tried, f"{100 * point.validation:.2f}", chosen))
    show_table(("method", "settings", "validation", ""), rows)
    typer.echo(f"wrote {out / 'tuned.json'}")


def report(
    folder: Annotated[Path, Argument(help="A folder made by 'reproduce', or a file of results.")],
    out: Annotated[
        Path | None, Option(help="Where the report goes; FOLDER/report if not given.")
    ] = None,
    run: Annotated[
        str, Option(help="The one whose results are wanted, of a file that several runs share.")
    ] = "",
) -> None:
    """Write the report of the experiments: a page to look at, tables as Markdown and LaTeX.

    Example: polyshot report grid
    """
    from polyshot.experiments.report import write_report

    page, *tables = write_report(folder, out, run)
    typer.echo(f"wrote {' and '.join(map(str, tables))}")
    typer.echo(f"Look at {page}")


def _command(context: typer.Context) -> str:
    """Write the command as it was given."""
    words = ["polyshot", str(context.info_name)]
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        source = context.get_parameter_source(str(parameter.name))
        if value is None or source is None or source.name != "COMMANDLINE":
            continue
        values = value if isinstance(value, list | tuple) else [value]
        if parameter.param_type_name == "argument":
            words += map(str, values)
        elif value is True:
            words.append(parameter.opts[0])
        else:
            words += [word for each in values for word in (parameter.opts[0], str(each))]
    return shlex.join(words)
