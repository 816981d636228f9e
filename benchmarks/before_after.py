"""The same benchmarks by the code of two checkouts, in turns in one run: does a rebuild cost time?

    python benchmarks/before_after.py --before FOLDER [--turns 5] [--quick] [benchmark ...]

FOLDER is another checkout with its src/ and benchmarks/; git is not needed. Benchmarks are `tsa`,
`own` (tsa.py own), `gpu` (trainings) and `parts` of it (augmentation, embedding, networks of their
own), `evaluate` and `many_domains`. One process serves each side all the time
and they take turns, so that what disturbs the one disturbs the other. Of each line: the medians
over the turns, and the ratio of times after / before with its quartiles over the turns; above 1 the
code of after is slower. On a CPU times are the processor's, on one thread, which other programs do
not disturb.

A side's benchmark is its own script. Where that prints too few digits, what it has timed is read
instead; `evaluate` compares with easyfsl, so here it is our side alone, by the code of either.
"""

import argparse
import contextlib
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

BENCHMARKS = ("tsa", "own", "gpu", "parts", "evaluate", "many_domains")
LINE = re.compile(r"^(?P<what>.+?): (?P<value>[\d,.]+) (?P<unit>s|\w+/s)\b")
COST = re.compile(r"(\d+): +([\d.]+) \((\d+) \+ (\d+), [\d.]+x, (\d+) MiB\)")


@dataclass(frozen=True)
class Asked:
    """What both sides are to do."""

    name: str
    quick: bool
    base_steps: int | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmarks", nargs="*", metavar="benchmark", help=", ".join(BENCHMARKS))
    parser.add_argument("--before", type=Path, help="the other checkout")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small networks, few updates")
    parser.add_argument(
        "--base-steps", type=int, help="of `gpu`; from 2,000 on the base is compiled"
    )
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve)
        return
    if wrong := [name for name in asked.benchmarks if name not in BENCHMARKS]:
        parser.error(f"no benchmark {wrong[0]}, only {', '.join(BENCHMARKS)}")
    if asked.before is None or not (asked.before / "src" / "polyshot").is_dir():
        parser.error("--before must be a checkout with a src/ and benchmarks/")
    here = Path(__file__).resolve().parent.parent
    with Side(asked.before.resolve()) as before, Side(here) as after:
        print(f"{before.device}, {asked.turns} turns; times and their ratio after / before")
        for name in asked.benchmarks or BENCHMARKS:
            compare(Asked(name, asked.quick, asked.base_steps), before, after, asked.turns)


class Side:
    """A process that runs the benchmarks of one checkout when it is asked."""

    def __init__(self, folder: Path):
        environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.device = self._answer()

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def run(self, asked: Asked) -> str:
        """Run a benchmark: what it prints."""
        assert self.process.stdin is not None
        print(json.dumps(asdict(asked)), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit("A side has ended before its time.")
        failed, text = json.loads(line)
        if failed:
            sys.exit(text)
        return str(text)


def compare(asked: Asked, before: Side, after: Side, turns: int) -> None:
    found: dict[str, tuple[list[float], list[float]]] = {}
    units: dict[str, str] = {}
    for turn in range(turns):
        for side in (before, after) if turn % 2 == 0 else (after, before):
            for what, value, unit in numbers(side.run(asked)):
                found.setdefault(what, ([], []))[side is after].append(value)
                units[what] = unit
    print(asked.name)
    for what, (old, new) in found.items():
        if len(old) != len(new):
            print(f"  {what}: only one side has it")
            continue
        rate = units[what].endswith("/s")
        ratios = [a / b if rate else b / a for a, b in zip(old, new, strict=True) if a and b]
        if not ratios:
            continue
        low, _, high = statistics.quantiles(ratios, n=4) if turns > 1 else ratios * 3
        one, other = (statistics.median(values) for values in (old, new))
        ratio = one / other if rate else other / one
        print(
            f"  {what:58} {one:10,.5g} -> {other:10,.5g} {units[what]:10} "
            f"{ratio:.3f}x ({low:.3f} to {high:.3f})"
        )
    sys.stdout.flush()


def numbers(text: str) -> Iterator[tuple[str, float, str]]:
    """Read what a benchmark prints: names, numbers and their units."""
    for line in text.splitlines():
        if costs := COST.findall(line):
            for count, task, _, _, memory in costs:
                what = f"{line.split()[0]}, {count} domains"
                yield f"{what}: a task", float(task), "ms"
                yield f"{what}: at the peak", float(memory), "MiB"
        elif match := LINE.match(line):
            yield match["what"], float(match["value"].replace(",", "")), match["unit"]


# What follows runs in a side's own process, whose polyshot is that of its checkout.


def serve(folder: Path) -> None:
    out, sys.stdout = sys.stdout, sys.stderr
    sys.path[0] = str(folder / "benchmarks")
    import torch  # noqa: PLC0415 (the other process needs none)

    import polyshot  # noqa: PLC0415

    assert polyshot.__file__ is not None
    assert Path(polyshot.__file__).is_relative_to(folder), "another polyshot is in the way"
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        torch.set_num_threads(1)
        time.perf_counter = time.process_time
    device = torch.cuda.get_device_name() if on_gpu else "CPU"
    print(json.dumps((False, f"torch {torch.__version__}, {device}")), file=out, flush=True)
    for line in sys.stdin:
        asked = Asked(**json.loads(line))
        said, failed = io.StringIO(), False
        try:
            with contextlib.redirect_stdout(said):
                SERVED[asked.name](asked, on_gpu)
            text = said.getvalue()
        except Exception:
            failed, text = True, traceback.format_exc()
        print(json.dumps((failed, text)), file=out, flush=True)
        if on_gpu:
            torch.cuda.empty_cache()


def run_tsa(asked: Asked, on_gpu: bool) -> None:
    """Run tsa.py; it prints ratios, so its times are read where it takes them."""
    import tsa  # noqa: PLC0415

    names = ("all at once", "with the rate chosen", "a plain loop, none of our code", "one by one")
    usual, taken = tsa.timed, []
    at_once = tsa.own_networks.AT_ONCE if hasattr(tsa, "own_networks") else tsa.inner_loop.AT_ONCE
    before, updates = dict(at_once), 10 if asked.quick else 40
    tsa.UPDATES, tsa.ONE_RATE = updates, replace(tsa.ONE_RATE, updates=updates)

    def timed(work: Callable[[], object], device: object) -> float:
        taken.append(usual(work, device))
        return taken[-1]

    tsa.timed = timed
    try:
        silently(tsa.main, str(200 if on_gpu and not asked.quick else 4))
    finally:
        tsa.timed = usual
        at_once.update(before)
    for name, seconds in zip(names, taken, strict=True):
        say(f"tsa, {name}", seconds)


def run_own(asked: Asked, _: bool) -> None:
    """Run tsa.py own, by a small network if it shall be quick."""
    import tsa  # noqa: PLC0415

    from polyshot.models.resnet import ResNetConfig  # noqa: PLC0415

    usual, medians = tsa.statistics, []

    def median(taken: list[float]) -> float:
        medians.append(statistics.median(taken))
        return medians[-1]

    tsa.statistics = SimpleNamespace(median=median)
    if asked.quick:
        tsa.ResNetConfig = lambda: ResNetConfig(16, "small/2")
    try:
        silently(tsa.main, "own")
    finally:
        tsa.statistics, tsa.ResNetConfig = usual, ResNetConfig
    # `ridge` came later: the sides are compared in what both have.
    names = ("none", "head", *(("ridge",) if len(medians) == 5 else ()), "pa", "tsa")
    for name, seconds in zip(names, medians, strict=True):
        say(f"fit with {name}", seconds)


def run_gpu(asked: Asked, on_gpu: bool) -> None:
    """Run the trainings of gpu.py, by fewer updates than it takes."""
    import gpu  # noqa: PLC0415
    import torch  # noqa: PLC0415

    from polyshot.config import ModulatorConfig  # noqa: PLC0415

    config = config_of(asked, on_gpu)
    steps, each = (600, 100) if on_gpu else (6, 4)
    config = replace(
        config,
        base=replace(config.base, steps=asked.base_steps or steps, validate_every=10_000),
        # Not the preset's, which has other tasks now: both sides shall do the same work.
        modulator=ModulatorConfig(
            steps=each, episodes=config.modulator.episodes, validate_every=10_000
        ),
        selector=replace(config.selector, steps=10, tasks=10),
        validation_episodes=10,
    )
    device = torch.device("cuda" if on_gpu else "cpu")
    sources = 2 if asked.quick else gpu.SOURCES
    with tempfile.TemporaryDirectory() as folder:
        packs = [gpu.random_pack(Path(folder), i, config.size) for i in range(sources)]
        gpu.trained(packs, config, Path(folder) / "run", device)


def run_parts(asked: Asked, on_gpu: bool) -> None:
    """Run what gpu.py does without a training."""
    import gpu  # noqa: PLC0415
    import torch  # noqa: PLC0415

    device = torch.device("cuda" if on_gpu else "cpu")
    for part in (gpu.augmented, gpu.embedded, gpu.adapted):
        part(config_of(asked, on_gpu), device)


def config_of(asked: Asked, on_gpu: bool) -> Any:
    """Take the network that gpu.py takes, or the small one if it shall be quick."""
    from polyshot.config import preset  # noqa: PLC0415

    return preset("strong" if on_gpu and not asked.quick else "tiny")


def run_many_domains(asked: Asked, on_gpu: bool) -> None:
    """Run many_domains.py without looking at files, nor, on a CPU, at memory."""
    import many_domains  # noqa: PLC0415

    many_domains.sizes = lambda _: ""
    if not on_gpu:
        many_domains.peak_alone = lambda *_: 0
    domains, turns = ("2,8", "9") if asked.quick else ("8,32", "15" if on_gpu else "5")
    rules = "base,select,blend,auto" if asked.quick else "select,blend"
    with arguments("--rules", rules, "--domains", domains, "--turns", turns):
        many_domains.main()


def run_evaluate(asked: Asked, on_gpu: bool) -> None:
    """Evaluate from embeddings that are there, with members and adaptations; then embed."""
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415

    from polyshot.data.pack import Domain, PackWriter  # noqa: PLC0415
    from polyshot.data.splits import ClassSplit  # noqa: PLC0415
    from polyshot.evaluation import evaluate as evaluation  # noqa: PLC0415
    from polyshot.models.resnet import ResNetConfig  # noqa: PLC0415

    device = torch.device("cuda" if on_gpu else "cpu")
    config, side = (ResNetConfig(16, "small/2"), 40) if asked.quick else (ResNetConfig(), 72)
    classes, each = 20, 30
    shape = classes * each, 3, side, side
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    labels, names = np.repeat(np.arange(classes), each), tuple(map(str, range(classes)))
    split = ClassSplit((), (), tuple(range(classes)), rule="file")
    pool = some_pool(config, side, 8).to(device)
    with tempfile.TemporaryDirectory() as folder:
        with PackWriter(Path(folder) / "pictures", side) as writer:
            writer.append(images)
            pack = writer.finish(Domain("pictures", names, labels, split=split), {})
        every = ["auto", "select", "average"]
        for rules, adaptation in ((["base"], "none"), (every, "none"), (["base"], "head")):
            episodes = 600 if adaptation == "none" or on_gpu else 120
            solve = solver(pool, pack, rules, episodes)
            seconds = median_of(lambda: solve(adaptation), device)  # noqa: B023 (run at once)
            print(f"{'+'.join(rules)}, {adaptation}: {episodes / seconds:,.1f} episodes/s")
        cache = cache_class()(Path(folder) / "cache")
        seconds = median_of(
            lambda: evaluation.evaluate(
                pool, pack, every, episodes=600 if on_gpu else 120, adapt=["head"], cache=cache
            ),
            device,
        )
        say(f"evaluate() by {'+'.join(every)}, none and head, cached", seconds)
    say("embedding by nine members", median_of(lambda: pool.embed(images[:128]), device))


def some_pool(config: Any, side: int, domains: int) -> Any:
    """Make a pool of random modulators and a selector, as many_domains.py does."""
    import many_domains  # noqa: PLC0415

    return many_domains.random_pool(config, side, domains)


def solver(pool: Any, pack: Any, names: list[str], episodes: int) -> Callable[[str], object]:
    """Prepare episodes; what is returned answers them, some at a time."""
    import torch  # noqa: PLC0415

    from polyshot.data.episodes import EpisodeSampler  # noqa: PLC0415
    from polyshot.data.shapes import EpisodeShape  # noqa: PLC0415
    from polyshot.evaluation import evaluate as evaluation  # noqa: PLC0415

    if hasattr(evaluation, "predictions"):  # up to release 0.1
        from polyshot.methods import rules as known  # noqa: PLC0415

        rules = [known.rule(name, pool) for name in names]
        task = evaluation.prepare(pool, pack, EpisodeSampler(pack.domain), episodes, rules)
        truth = torch.arange(5).repeat_interleave(10)

        def solve(adaptation: str) -> object:  # as its evaluate() did
            answers = [
                (each.ways == truth, each.sure, each.diverged)
                for each in evaluation.predictions(pool, task, rules, adaptation)
            ]
            return [torch.cat(parts, 1) for parts in zip(*answers, strict=True)]

        return solve
    from polyshot.evaluation.targets import Target  # noqa: PLC0415
    from polyshot.predict.predict import predict_tasks  # noqa: PLC0415
    from polyshot.predict.rules import rule  # noqa: PLC0415

    rules = [rule(name, pool) for name in names]
    shape = EpisodeShape()
    groups = Target(pack, pool.device, [shape], episodes).groups(shape)
    return lambda adaptation: evaluation.measure(
        lambda tasks: predict_tasks(pool, tasks, rules, adaptation),
        groups,
        pool.config.dim,
        adaptation,
    )


def cache_class() -> Any:
    try:
        from polyshot.tasks import EmbeddingCache  # noqa: PLC0415
    except ImportError:  # up to release 0.1
        from polyshot.evaluation.embed import EmbeddingCache  # noqa: PLC0415
    return EmbeddingCache


def median_of(work: Callable[[], object], device: Any) -> float:
    """Seconds of one call, after one to warm up: the median of 3 and more, within a second."""
    import torch  # noqa: PLC0415

    taken: list[float] = []
    while len(taken) < 4 or (sum(taken[1:]) < 1 and len(taken) < 40):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


@contextlib.contextmanager
def arguments(*given: str) -> Iterator[None]:
    """Let a script find these on its command line."""
    before, sys.argv = sys.argv, [sys.argv[0], *given]
    try:
        yield
    finally:
        sys.argv = before


def silently(work: Callable[[], object], *given: str) -> None:
    """Work without what it prints."""
    with arguments(*given), contextlib.redirect_stdout(io.StringIO()):
        work()


def say(what: str, seconds: float) -> None:
    print(f"{what}: {seconds:.5f} s")


SERVED = {
    "tsa": run_tsa,
    "own": run_own,
    "gpu": run_gpu,
    "parts": run_parts,
    "evaluate": run_evaluate,
    "many_domains": run_many_domains,
}

if __name__ == "__main__":
    main()
