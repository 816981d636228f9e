"""Derive src/polyshot/data/wordnet.json from WordNet 3.0's noun file.

Debian's package wordnet-base has it:

    apt-get download wordnet-base && dpkg-deb -x wordnet-base*.deb wn
    python tools/wordnet_ids.py wn/usr/share/wordnet/data.noun
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

ROOTS = {"carnivore": "02075296", "device": "03183080"}
OUT = Path(__file__).parent.parent / "src/polyshot/data/wordnet.json"
NOTE = "Noun synset ids of WordNet 3.0, copyright 2006 by Princeton University; licence in NOTICE."


def hyponyms(path: Path) -> dict[str, list[str]]:
    """Read each synset's direct hyponyms (pointers ``~`` and ``~i``) from a WordNet data file."""
    below: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text(encoding="latin-1").splitlines():
        if line.startswith("  "):  # the licence at the top
            continue
        fields = line.split(" | ")[0].split()
        first = 4 + 2 * int(fields[3], 16)  # after the words comes the number of pointers
        for i in range(int(fields[first])):
            symbol, offset, part_of_speech, _ = fields[first + 1 + 4 * i : first + 5 + 4 * i]
            if symbol in ("~", "~i") and part_of_speech == "n":
                below[fields[0]].append(offset)
    return below


def under(root: str, below: dict[str, list[str]]) -> list[str]:
    """Every id in the tree below a root, the root included."""
    seen: set[str] = set()
    waiting = [root]
    while waiting:
        offset = waiting.pop()
        if offset not in seen:
            seen.add(offset)
            waiting += below.get(offset, [])
    return sorted(f"n{offset}" for offset in seen)


if __name__ == "__main__":
    tree = hyponyms(Path(sys.argv[1]))
    ids = {name: under(root, tree) for name, root in ROOTS.items()}
    OUT.write_text(
        json.dumps({"note": NOTE, "under": ids}, separators=(",", ":")) + "\n", encoding="utf-8"
    )
    print({name: len(members) for name, members in ids.items()})
