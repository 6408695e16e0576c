"""Real architectures under FIND: one BatchNorm model of each timm family, Hugging Face models, a U-Net.

All are built from their configuration, with weights from a seed; nothing is downloaded.
"""

import itertools
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

import findtta
from findtta.errors import InputError, UnusedLayerWarning
from findtta.layers.frozen import is_frozen_batch_norm
from nets import assert_same_snapshot, close, images, in_threads, same_bits, snapshot

pytestmark = pytest.mark.slow


def tensors(outputs) -> list[Tensor]:
    """All numbers that a model returns, in whatever structure."""
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def assert_same(got, want) -> None:
    for a, b in zip(tensors(got), tensors(want), strict=True):
        assert same_bits(a, b)


@torch.no_grad()
def trained(model: nn.Module, batch: Tensor) -> nn.Module:
    """Give the BatchNorm layers an affine map, and the statistics of a batch, as if the model had been trained."""
    generator = torch.Generator().manual_seed(0)
    momenta = {}
    for module in model.eval().modules():
        if isinstance(module, _BatchNorm):
            momenta[module] = module.momentum
            module.train().momentum = 1.0
        if is_frozen_batch_norm(module) or (isinstance(module, _BatchNorm) and module.affine):
            module.weight.uniform_(0.5, 1.5, generator=generator)
            module.bias.normal_(0, 0.1, generator=generator)
        if is_frozen_batch_norm(module):
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
    model(batch)
    for module, momentum in momenta.items():
        module.eval().momentum = momentum
    return model


def check(model: nn.Module, *batches: Tensor, unused: bool = False) -> None:
    """Check all that must hold for any model, in as few passes as possible.

    Args:
        model: A model in evaluation mode.
        *batches: Two inputs.
        unused: Whether the model has BatchNorm layers that it does not run in evaluation mode.
    """
    before = snapshot(model)
    with torch.no_grad():
        source = model(batches[0])
    with warnings.catch_warnings():
        if unused:
            warnings.simplefilter("ignore", UnusedLayerWarning)
        model_itself = findtta.adapt(model, alpha=1.0, inplace=True, reuse_buffers=False)
        assert_same(model_itself(batches[0]), source)
        assert findtta.unwrap(model_itself) is model
        adapted = findtta.adapt(model)
        found = [adapted(batch) for batch in batches]
        assert all(tensor.isfinite().all() for tensor in tensors(found))
        assert not all(same_bits(a, b) for a, b in zip(tensors(found[0]), tensors(source), strict=True))
        # Checkpoints go both ways, and are loaded into a model that is at work.
        state = adapted.state_dict()
        assert list(state) == list(before["state"])
        plain = findtta.unwrap(adapted)
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter.zero_()
        plain.load_state_dict(state)
        with torch.no_grad():
            for parameter in adapted.parameters():
                parameter.zero_()
        adapted.load_state_dict(plain.state_dict())
        for got, want in zip(in_threads(adapted, [*batches, *batches], 4), [*found, *found], strict=True):
            assert_same(got, want)
        model_itself = findtta.adapt(model, inplace=True, reuse_buffers=False)
        assert_same(model_itself(batches[0]), found[0])
    assert findtta.unwrap(model_itself) is model
    assert_same_snapshot(before, snapshot(model))


# timm: for each of its modules, the model with BatchNorm that has the fewest parameters (but for those made
# for timm's own tests), at 64 pixels where it allows that.

SMALL = {"img_size": 64}
TIMM = {
    "eca_botnext26ts_256": SMALL,  # halonet_h1 is smaller, but needs 256 pixels
    "mobileone_s1": {},
    "convmixer_768_32": {},
    "cpubone_nano": {},
    "cs3darknet_focus_s": {},
    "densenet121": {},
    "dla46x_c": {},
    "dpn48b": {},
    "efficientformer_l1": {},
    "efficientformerv2_s0": SMALL,
    "mobilenetv2_035": {},
    "efficientvim_m1": {},
    "efficientvit_b0": {},
    "efficientvit_m0": SMALL,
    "fasternet_t0": {},
    "fastvit_t8": {},
    "ghostnet_050": {},
    "hardcorenas_b": {},
    "hgnetv2_b0": {},
    "hrnet_w18_small": {},
    "iformer_t": {},
    "inception_next_atto": {},
    "inception_resnet_v2": {},
    "inception_v3": {},
    "inception_v4": {},
    "lcnetv2_small": {},
    "levit_128s": SMALL,
    "lowformer_b0": {},
    "maxvit_pico_rw_256": SMALL,
    "lcnet_035": {},
    "mobilevit_xxs": {},
    "nasnetalarge": {"stem_size": 12, "num_features": 384},  # large otherwise; pnasnet is of its kind
    "nextvit_small": {},
    "regnetx_002": {},
    "repghostnet_050": {},
    "repvit_m1": {},
    "res2next50": {},
    "resnest14d": {},
    "resnet10t": {},
    "resnetv2_18": {},
    "rexnet_100": {},
    "selecsls42": {},
    "legacy_seresnet18": {},
    "shvit_s1": {},
    "skresnet18": {},
    "starnet_s050": {},
    "swiftformer_xs": {},
    "tiny_vit_5m_224": {},
    "tresnet_m": {},
    "vgg11_bn": {"mlp_ratio": 1 / 64},  # 129 million parameters otherwise
    "visformer_tiny": SMALL,
    "vit_small_resnet50d_s16_224": SMALL,
    "volo_d1_224": SMALL,
    "ese_vovnet19b_slim_dw": {},
    "legacy_xception": {},
    "xception41p": {},
    "xcit_nano_12_p8_224": {},
}
#: Large ones, and those that need larger images, are for the night.
LARGE = {
    *("convmixer_768_32", "efficientformer_l1", "inception_resnet_v2", "inception_v3", "inception_v4"),
    *("nasnetalarge", "nextvit_small", "tresnet_m", "vit_small_resnet50d_s16_224", "volo_d1_224"),
    *("legacy_xception", "xception41p"),
}
PIXELS = {"efficientformer_l1": 224, "inception_resnet_v2": 96, "inception_v3": 96, "inception_v4": 96}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in LARGE else ()) for name in TIMM]
)
def test_timm_family(timm, name):
    if name not in timm.list_models():
        pytest.skip("this version of timm does not have it")
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10, **TIMM[name])
    first, second, third = (images(3, seed=seed, size=PIXELS.get(name, 64)) for seed in range(3))
    check(trained(model, first), second, third)


# Hugging Face: small configurations.


@pytest.fixture(scope="module")
def transformers(timm):  # some backbones are timm's
    return pytest.importorskip("transformers")


RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}
SEGFORMER = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [8, 16, 16, 32],
    "decoder_hidden_size": 16,
    "num_attention_heads": [1, 1, 2, 2],
}
TRANSFORMER = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}
DETECTION = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "num_queries": 5,
}
STAGES = ["stage1", "stage2", "stage3", "stage4"]

# Name of the model's class, then its configuration; one that is a class name and arguments is nested.
HUGGING_FACE = {
    "ResNetForImageClassification": ("ResNetConfig", RESNET),
    "RegNetForImageClassification": (
        "RegNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1], "groups_width": 8},
    ),
    "MobileNetV1ForImageClassification": ("MobileNetV1Config", {"depth_multiplier": 0.25}),
    "MobileNetV2ForSemanticSegmentation": ("MobileNetV2Config", {"depth_multiplier": 0.25}),
    "MobileViTForImageClassification": (
        "MobileViTConfig",
        {
            "image_size": 64,
            "hidden_sizes": [16, 20, 24],
            "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
            "num_attention_heads": 2,
        },
    ),
    "MobileViTV2ForSemanticSegmentation": ("MobileViTV2Config", {"image_size": 64, "width_multiplier": 0.25}),
    "EfficientNetForImageClassification": (
        "EfficientNetConfig",
        {"image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320},
    ),
    "CvtForImageClassification": (
        "CvtConfig",
        {
            "embed_dim": [8, 16, 24],
            "num_heads": [1, 2, 2],
            "depth": [1, 2, 3],
            "drop_path_rate": [0.0, 0.0, 0.0],
        },
    ),
    "LevitForImageClassificationWithTeacher": (
        "LevitConfig",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [1, 2, 2],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
        },
    ),
    "SwiftFormerForImageClassification": (
        "SwiftFormerConfig",
        {"image_size": 64, "depths": [1, 1, 1, 1], "embed_dims": [8, 16, 24, 32]},
    ),
    "TextNetForImageClassification": (
        "TextNetConfig",
        {"stem_out_channels": 8, "hidden_sizes": [8, 8, 16, 24, 32]},
    ),
    "HGNetV2ForImageClassification": (
        "HGNetV2Config",
        {
            "embedding_size": 16,
            "stem_channels": [3, 8, 16],
            "stage_in_channels": [16, 16, 16, 32],
            "stage_mid_channels": [8, 8, 8, 16],
            "stage_out_channels": [16, 16, 32, 32],
            "stage_num_blocks": [1, 1, 1, 1],
            "stage_numb_of_layers": [2, 2, 2, 2],
            "hidden_sizes": [16, 16, 32, 32],
            "depths": [1, 1, 1, 1],
        },
    ),
    "SegformerForSemanticSegmentation": ("SegformerConfig", SEGFORMER),
    "GLPNForDepthEstimation": ("GLPNConfig", SEGFORMER),
    "UperNetForSemanticSegmentation": (
        "UperNetConfig",
        {
            "backbone_config": ("ResNetConfig", {**RESNET, "out_features": STAGES}),
            "hidden_size": 16,
            "auxiliary_in_channels": 24,
            "auxiliary_channels": 8,
        },
    ),
    "BeitForSemanticSegmentation": (
        "BeitConfig",
        {**TRANSFORMER, "image_size": 64, "patch_size": 16, "out_indices": [1, 2, 3, 4]},
    ),
    "DPTForDepthEstimation": (
        "DPTConfig",
        {
            **TRANSFORMER,
            "image_size": 64,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 16, 16],
            "fusion_hidden_size": 16,
            "use_batch_norm_in_fusion_residual": True,
        },
    ),
    "DetrForObjectDetection": (
        "DetrConfig",
        {**DETECTION, "backbone_config": ("ResNetConfig", {**RESNET, "out_features": ["stage4"]})},
    ),
    "ConditionalDetrForObjectDetection": (
        "ConditionalDetrConfig",
        {**DETECTION, "backbone_config": ("ResNetConfig", {**RESNET, "out_features": ["stage4"]})},
    ),
    "RTDetrForObjectDetection": (
        "RTDetrConfig",
        {
            **DETECTION,
            "backbone_config": ("RTDetrResNetConfig", {**RESNET, "out_features": STAGES[1:]}),
            "encoder_in_channels": [16, 24, 32],
            "encoder_hidden_dim": 16,
            "decoder_in_channels": [16, 16, 16],
        },
    ),
    "Wav2Vec2ConformerForSequenceClassification": (
        "Wav2Vec2ConformerConfig",
        {
            **TRANSFORMER,
            "num_hidden_layers": 2,
            "conv_dim": [8] * 7,
            "num_conv_pos_embeddings": 8,
            "num_conv_pos_embedding_groups": 2,
            "classifier_proj_size": 8,
            "conv_depthwise_kernel_size": 5,
        },
    ),
}
UNUSED = ("DPTForDepthEstimation",)  # its first fusion layer has no residual to normalise


def from_config(transformers, name):
    def config(kind, arguments):
        nested = {key: config(*value) for key, value in arguments.items() if isinstance(value, tuple)}
        return getattr(transformers, kind)(**{**arguments, **nested})

    torch.manual_seed(0)
    return getattr(transformers, name)(config(*HUGGING_FACE[name])).eval()


def sounds(seed):
    """Like :func:`images`, in one dimension."""
    return images(3, seed=seed, size=26).flatten(1)


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_face_model(transformers, name):
    inputs = sounds if "Wav2Vec2" in name else lambda seed: images(3, seed=seed, size=64)
    model = trained(from_config(transformers, name), inputs(2))
    check(model, inputs(0), inputs(1), unused=name in UNUSED)
    # Nothing that normalises with statistics of its own is passed over in silence.
    layers = findtta.inspect(model).layers
    assert {layer.adaptable for layer in layers if "BatchNorm" in layer.kind} == {True}
    assert not any("running statistics, but" in layer.note for layer in layers)


def test_a_hugging_face_model_is_saved_and_loaded_through_the_adapted_one(transformers, tmp_path):
    name, batch = "ResNetForImageClassification", images(3, size=64)
    model = trained(from_config(transformers, name), batch)
    adapted = findtta.adapt(model)
    want = adapted(images(3, size=64)).logits
    adapted.save_pretrained(tmp_path)
    loaded = getattr(transformers, name).from_pretrained(tmp_path).eval()
    assert list(loaded.state_dict()) == list(model.state_dict())
    with torch.no_grad():
        assert same_bits(loaded(batch).logits, model(batch).logits)
    assert same_bits(findtta.adapt(loaded)(batch).logits, want)


@pytest.mark.parametrize("method", ["find", "find-soft"])
def test_a_model_that_normalises_with_the_function_is_adapted_as_one_that_calls_its_layers(transformers, method):
    batches = [images(3, seed=seed, size=64) for seed in range(3)]
    model = trained(from_config(transformers, "ResNetForImageClassification"), batches[2])
    by_layer = findtta.adapt(model, method)

    def forward(self, hidden):
        norm = self.normalization
        hidden = F.batch_norm(
            self.convolution(hidden), norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
        )
        return self.activation(hidden)

    for module in model.modules():
        if hasattr(module, "convolution") and hasattr(module, "normalization") and hasattr(module, "activation"):
            module.forward = types.MethodType(forward, module)
    by_function = findtta.adapt(model, method, inplace=True)
    for batch in batches:
        assert close(by_function(batch).logits, by_layer(batch).logits, 1e-5)
    assert by_function.functional_calls
    assert [line.score for line in by_function.report()] == pytest.approx(
        [line.score for line in by_layer.report()]
    )


# Parts of a model, frozen layers, and an architecture of one's own.


@pytest.mark.parametrize("name", ["resnet10t", "mobilenetv3_small_050"])
def test_the_parts_of_a_timm_model_equal_the_whole(timm, name):
    torch.manual_seed(0)
    batch = images(3, size=64)
    model = trained(timm.create_model(name, num_classes=10), images(3, seed=1, size=64))
    adapted = findtta.adapt(model, "find-soft")
    with torch.no_grad():
        features = adapted.forward_features(batch)  # before a whole call, too
        assert close(adapted.forward_head(features), adapted(batch), 1e-5)
        assert same_bits(adapted.forward_features(batch), features)


def test_a_part_that_needs_the_layers_before_is_refused(timm):
    torch.manual_seed(0)
    adapted = findtta.adapt(timm.create_model("levit_128s", img_size=64), "find-soft")  # BatchNorm in the head
    with torch.no_grad(), pytest.raises(InputError, match="forward_head"):
        adapted.forward_head(adapted.forward_features(images(3, size=64)))


@pytest.mark.parametrize("name", ["resnet10t", "efficientnet_lite0", "resnetv2_18"])
def test_frozen_by_timm(timm, name):
    torch.manual_seed(0)
    first, second, third = (images(3, seed=seed, size=64) for seed in range(3))
    model = trained(timm.create_model(name, num_classes=10), first)
    want = findtta.adapt(model)(second)
    frozen = timm.layers.freeze_batch_norm_2d(model)
    assert not any(isinstance(module, _BatchNorm) for module in frozen.modules())
    assert close(findtta.adapt(frozen)(second), want, 1e-4)
    check(frozen, second, third)


def test_frozen_by_torchvision(timm):
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    first, second, third = (images(3, seed=seed, size=64) for seed in range(3))
    model = torchvision.models.resnet18(norm_layer=torchvision.ops.FrozenBatchNorm2d, num_classes=10)
    check(trained(model, first), second, third)


class UNet(nn.Module):
    """Skip connections from every level to the level's way back, which ends in a map of classes."""

    def __init__(self, channels=(3, 8, 16, 32), classes=4):
        super().__init__()
        levels = list(itertools.pairwise(channels))
        self.down = nn.ModuleList(self.block(before, after) for before, after in levels)
        self.bottom = self.block(channels[-1], channels[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(c, c, 2, stride=2) for c in channels[:0:-1])
        self.merge = nn.ModuleList(self.block(2 * after, max(before, 8)) for before, after in levels[::-1])
        self.head = nn.Conv2d(8, classes, 1)

    @staticmethod
    def block(before, after):
        layers = (nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True))
        return nn.Sequential(*layers, nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())

    def forward(self, x):
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), skips.pop()], 1))
        return self.head(x)


def test_u_net():
    torch.manual_seed(0)
    first, second, third = (images(3, seed=seed, size=32) for seed in range(3))
    check(trained(UNet(), first), second, third)
