import pytest
import torch

from polyshot.errors import PolyshotError
from polyshot.models.backbone import parameter_count, sites_of
from polyshot.models.resnet import ResNet, ResNetConfig, load_base

TINY = ResNetConfig(width=4, stem="small")


def torchvision_keys() -> set[str]:
    """The keys of torchvision's resnet18 without fc, by rule."""

    def norm(name: str) -> list[str]:
        entries = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        return [f"{name}.{entry}" for entry in entries]

    keys = ["conv1.weight", *norm("bn1")]
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            at = f"layer{stage}.{block}"
            for i in (1, 2):
                keys += [f"{at}.conv{i}.weight", *norm(f"{at}.bn{i}")]
        if stage > 1:
            keys += [f"layer{stage}.0.downsample.0.weight", *norm(f"layer{stage}.0.downsample.1")]
    return set(keys)


def with_classifier(model: ResNet) -> dict[str, torch.Tensor]:
    state = {name: torch.rand_like(t.float()).to(t.dtype) for name, t in model.state_dict().items()}
    return state | {"fc.weight": torch.rand(1000, model.config.dim), "fc.bias": torch.rand(1000)}


def test_parameters_and_keys_are_torchvisions() -> None:
    base = ResNet()
    assert parameter_count(base) == 11_176_512
    assert len(torchvision_keys()) == 120
    assert set(base.state_dict()) == torchvision_keys()
    assert base.conv1.weight.shape == (64, 3, 7, 7)
    assert base.layer4[1].conv2.weight.shape == (512, 512, 3, 3)


@pytest.mark.parametrize(("stem", "feature_map"), [("imagenet", 6), ("small", 24), ("small/2", 12)])
def test_stems(stem: str, feature_map: int) -> None:
    base = ResNet(ResNetConfig(4, stem)).eval()  # type: ignore[arg-type]
    sizes = []
    base.layer1.register_forward_hook(lambda _module, _in, out: sizes.append(out.shape[-1]))
    with torch.no_grad():
        assert base(torch.randn(2, 3, 24, 24)).shape == (2, base.config.dim) == (2, 32)
    assert sizes == [feature_map]
    assert set(base.state_dict()) == torchvision_keys()


def test_sites_are_the_block_convolutions() -> None:
    base = ResNet(TINY)
    sites = sites_of(base)
    convs = [
        name
        for name, module in base.named_modules()
        if isinstance(module, torch.nn.Conv2d) and name.startswith("layer") and "down" not in name
    ]
    assert [site.layer for site in sites] == convs
    assert len(sites) == 16
    for site in sites:
        weight = base.get_parameter(f"{site.layer}.weight")
        assert weight.shape == (site.outputs, site.inputs, 3, 3)
        assert base.get_parameter(f"{site.norm}.weight").shape == (site.outputs,)
        assert site.norm == site.layer.replace("conv", "bn")


def test_he_initialisation_keeps_the_signal() -> None:
    torch.manual_seed(0)
    weight = ResNet().layer3[1].conv1.weight
    assert weight.std().item() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.01)


def test_load_base_leaves_the_classifier_out() -> None:
    base = ResNet(TINY)
    state = with_classifier(base)
    load_base(base, state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in base.state_dict().items())
    load_base(base, {k: v for k, v in state.items() if "num_batches" not in k})  # files before 2018


def test_load_base_refuses_what_does_not_fit() -> None:
    base = ResNet(TINY)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    state = with_classifier(base)
    with pytest.raises(PolyshotError, match=r"missing keys: conv1\.weight, bn1\.weight, bn1\.bias"):
        load_base(base, {"fc.weight": torch.zeros(2, 2)})
    with pytest.raises(PolyshotError, match=r"conv1\.weight \(is \[4, 3, 7, 7\], should be"):
        load_base(base, state | {"conv1.weight": torch.zeros(4, 3, 7, 7)})
    with pytest.raises(PolyshotError, match=r"unknown keys: layer1\.2\.conv1\.weight"):
        load_base(base, state | {"layer1.2.conv1.weight": torch.zeros(1)})
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())


def test_config_refuses_nonsense() -> None:
    with pytest.raises(PolyshotError, match="Did you mean 'small'"):
        ResNetConfig(stem="smal")  # type: ignore[arg-type]
    with pytest.raises(PolyshotError, match="at least 1"):
        ResNetConfig(width=0)
