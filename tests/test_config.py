"""Configs: presets, options, and the way to disk and back."""

import json

import pytest

from polyshot.config import PRESETS, differences, from_dict, override, preset, to_dict
from polyshot.errors import PolyshotError


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json(name: str) -> None:
    config = preset(name)
    assert config.preset == name
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    assert differences(config, config) == []


def test_the_paper_preset_is_faithful() -> None:
    """Adam, 1e-3, no regularisation of any kind, Euclidean, 72 px, the full network."""
    config = preset("paper")
    base, selector = config.base, config.selector
    assert (base.optimiser, base.learning_rate, base.weight_decay) == ("adam", 1e-3, 0.0)
    assert (base.label_smoothing, base.mix, selector.dropout, selector.weight_decay) == (0, 0, 0, 0)
    assert (config.metric, config.size, config.model.dim) == ("euclidean", 72, 512)
    assert config.modulator.strengths == (1.0,) and config.modulator.learning_rate == 1e-3
    assert config.adaptation.start == "random" and config.adaptation.steps == 100


def test_options_override_single_fields() -> None:
    changed = override(
        preset("tiny"),
        [
            "base.steps=7",
            "modulator.kind=channel",
            "modulator.strengths=[0, 1]",
            "base.augment.turn=1",
        ],
    )
    assert changed.base.steps == 7 and changed.modulator.kind == "channel"
    assert changed.modulator.strengths == (0.0, 1.0) and changed.base.augment.turn == 1.0
    assert set(differences(preset("tiny"), changed)) == {
        "base.steps: 900 and 7",
        "base.augment.turn: 0.15 and 1.0",
        "modulator.kind: conv1x1 and channel",
        "modulator.strengths: [0.0, 0.25, 0.5, 0.75, 1.0] and [0.0, 1.0]",
    }


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("base.stpes=1", "Did you mean 'steps'"),
        ("base=1", "must name one value"),
        ("base.steps.x=1", "must name one value"),
        ("base.steps", "must look like"),
        ("base.steps=many", "value of the wrong kind"),
        ("base.steps=1.5", "value of the wrong kind"),
        ("metric=manhattan", "value of the wrong kind"),
        ("modulator.strengths=1", "value of the wrong kind"),
        ("adaptation.tsa_sharpness=0.0", "tsa_sharpness=0.0 must be above 0"),
        ("adaptation.familiar_sharpness=-0.6", "familiar_sharpness=-0.6 must be above 0"),
        ("adaptation.tsa_share=2.0", "tsa_share=2.0 must be from 0 to 1"),
    ],
)
def test_wrong_options_are_named(option: str, says: str) -> None:
    with pytest.raises(PolyshotError) as error:
        override(preset("tiny"), [option])
    assert says in str(error.value) and "\n" not in str(error.value)


def test_unknown_presets_are_named() -> None:
    with pytest.raises(PolyshotError, match="Did you mean 'strong'"):
        preset("stron")
