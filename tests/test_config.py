"""Configs: presets, options, and the way to disk and back."""

import hashlib
import json

import pytest

from polyshot.config import (
    PRESETS,
    AdaptationConfig,
    Config,
    differences,
    for_hash,
    from_dict,
    override,
    preset,
    to_dict,
)
from polyshot.data.augment import Augment
from polyshot.errors import PolyshotError


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json(name: str) -> None:
    config = preset(name)
    assert config.preset == name
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    assert differences(config, config) == []


def test_the_paper_preset_is_faithful() -> None:
    """Adam, 1e-3, no regularisation of any kind, Euclidean, 72 px, the full network.

    Where the text is silent it is plain: images as they are, a constant rate, nothing clipped.
    """
    config = preset("paper")
    base, selector = config.base, config.selector
    assert (base.optimiser, base.learning_rate, base.weight_decay) == ("adam", 1e-3, 0.0)
    assert (base.label_smoothing, base.mix, selector.dropout, selector.weight_decay) == (0, 0, 0, 0)
    assert (config.metric, config.size, config.model.dim) == ("euclidean", 72, 512)
    assert config.modulator.strengths == (1.0,) and config.modulator.learning_rate == 1e-3
    for own in (base, config.modulator, selector):
        assert (own.schedule, own.clip) == ("constant", 0)
    assert base.warm_up == 0 and base.cool_down == 0
    assert base.augment == config.modulator.augment == Augment()
    assert base.sampling == 1  # one aggregated dataset
    head = config.adaptation
    assert (head.start, head.head_optimiser, head.steps) == ("random", "adam", 100)
    assert (head.learning_rate, head.pull) == (1e-3, 0)


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
        ("adaptation.tsa_sharpness=0.0", "tsa_inverse_temperature=0.0 must be above 0"),
        ("adaptation.familiar_inverse_temperature=-0.6", "temperature=-0.6 must be above 0"),
        ("selector.dropout=7", "selector.dropout=7.0 is too large: 1 is the most"),
        ("base.batch=100000000000000", "base.batch=100000000000000 is too large"),
        ("base.steps=-1", "base.steps=-1 is too small: 0 is the least"),
        ("base.learning_rate=NaN", "value of the wrong kind"),
        ("base.augment.area=[0.5]", "value of the wrong kind"),
        ("adaptation.rates=[1e9]", "rates[0]=1000000000.0 is too large"),
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


def test_names_of_before_are_read_as_what_they_are_now() -> None:
    old = {"tsa_turns": False, "tsa_apart": False, "tsa_sharpness": 0.5, "familiar_sharpness": 0.9}
    read = from_dict({"adaptation": old})
    assert read.adaptation == AdaptationConfig(
        tsa_rotate_crops=False,
        tsa_leave_self_out=False,
        tsa_inverse_temperature=0.5,
        familiar_inverse_temperature=0.9,
    )
    options = [f"adaptation.{name}={json.dumps(value)}" for name, value in old.items()]
    assert override(Config(), options) == read
    assert old.items() <= for_hash(to_dict(read))["adaptation"].items()
    assert from_dict(for_hash(to_dict(read))) == read
    with pytest.raises(ValueError, match="twice"):
        from_dict({"adaptation": {"tsa_turns": True, "tsa_rotate_crops": True}})


@pytest.mark.parametrize(
    ("config", "digest"),
    [
        (Config(), "5ccf90a8ab5a9545a23d5f32767b93bf8d8af0f5eb16d38b6121ff55c81af408"),
        (preset("tiny"), "e0d8640a9fb616f3291c2f853ec966ab5ba7cfee3ca2954131399a0216624efb"),
    ],
)
def test_hashes_of_configs_never_change(config: Config, digest: str) -> None:
    """As at commit 0488eed: trainings on the disks of others are found by them."""
    text = json.dumps(for_hash(to_dict(config)))
    assert hashlib.sha256(text.encode()).hexdigest() == digest
