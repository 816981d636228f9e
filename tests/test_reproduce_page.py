"""The method that docs/reproduce.md teaches works as written."""

import re
from pathlib import Path

import torch

from polyshot.methods.method import METHODS, find_methods
from polyshot.models.resnet import ResNet, ResNetConfig
from tests.helpers import from_table

PAGE = (Path(__file__).parents[1] / "docs" / "reproduce.md").read_text(encoding="utf-8")


class Run:
    """As much of a training run as the method asks for."""

    def base(self) -> ResNet:
        torch.manual_seed(0)
        return ResNet(ResNetConfig(width=4, stem="small")).eval()


def test_a_method_of_your_own() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    try:
        exec(compile(code, "nearest.py", "exec"), {"__name__": "nearest"})
        (method,) = find_methods(["nearest"])
        fitted = method.fit(Run(), {})  # type: ignore[arg-type]
        table = torch.randint(0, 256, (30, 3, 16, 16), dtype=torch.uint8)
        places = torch.arange(30).view(2, 3, 5)
        # A query that is a support image is nearest to itself.
        tasks = from_table(table, places[..., :2], places[..., 0])
        assert fitted.predict(tasks).argmax(-1).tolist() == [[0, 1, 2], [0, 1, 2]]
        assert fitted.parameters() > 0
    finally:
        METHODS.pop("nearest", None)
