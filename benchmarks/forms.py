"""What the two forms of the default cost a user: seconds to learn and to answer, and memory.

    python benchmarks/forms.py [--forms fast,full] [--shots 1,2,5,20] [--ours] [--device cpu]

Five classes of drawn photos, 100 queries; each measurement in a process of its own,
with the time to load what it stands on. `--ours` goes without EfficientNet-Lite, as where the extra
`[imagenet]` is not installed. On a CPU memory is the peak of the process, on a GPU what was
allocated there. A line each; nothing else should run beside it.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

CLASSES, QUERIES = 5, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--forms", default="fast,full")
    parser.add_argument("--shots", default="1,2,5,20")
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measured(given.forms, Path(given.measure), given.ours, given.device)))
        return
    print("| form | examples a class | how | load, s | learn, s | queries/s | GiB |")
    print("|---|---|---|---|---|---|---|")
    for form in given.forms.split(","):
        for shot in given.shots.split(","):
            with TemporaryDirectory() as folder:
                example = Path(folder) / "example"
                draw(example, int(shot))
                words = ["--forms", form, "--measure", str(example), "--device", given.device]
                words += ["--ours"] * given.ours
                done = subprocess.run(
                    [sys.executable, __file__, *words], check=True, capture_output=True, text=True
                )
            values = json.loads(done.stdout.splitlines()[-1])
            print("| " + " | ".join([form, shot, *map(str, values)]) + " |", flush=True)


def draw(folder: Path, shot: int) -> None:
    from polyshot.data.toy import draw_example  # noqa: PLC0415 (the other process loads it anew)

    draw_example(folder, "flowers", CLASSES, shot, QUERIES // CLASSES)


def measured(form: str, folder: Path, ours: bool, device: str) -> list[object]:
    """Load, learn and answer; which adaptation it was, seconds of each, queries a second, GiB."""
    import torch  # noqa: PLC0415

    from polyshot.classifier import FewShotClassifier  # noqa: PLC0415
    from polyshot.data.readers.queries import read_queries, read_support  # noqa: PLC0415
    from polyshot.pool import forms  # noqa: PLC0415
    from polyshot.util.memory import keep_freed  # noqa: PLC0415

    keep_freed()
    if ours:
        forms.is_installed = lambda _: False
    start = time.perf_counter()
    pools, _ = forms.load_pools(form, device)
    loaded = time.perf_counter()
    support, labels = read_support(folder / "support")
    classifier = FewShotClassifier(pools).fit(support, labels)
    learned = time.perf_counter()
    queries = read_queries(folder / "query")
    classifier.predict(queries)
    answered = time.perf_counter()
    on_gpu = torch.device(device).type == "cuda"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    memory = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else peak
    return [
        str(classifier.adaptation_),
        f"{loaded - start:.1f}",
        f"{learned - loaded:.1f}",
        f"{len(queries) / (answered - learned):.0f}",
        f"{memory:.1f}",
    ]


if __name__ == "__main__":
    main()
