"""How large images and batches are, and what layers keep of them."""

import pytest

from tests.support.read_programs import needs

TORCH = "import torch\nfrom torch import nn\n"


def _activations(source: str, *arguments: str) -> float:
    return needs(source, *arguments)["memory_gb"]["activations"]


def test_a_transform_says_the_size_of_images() -> None:
    source = (
        "import torch\nfrom torchvision import models, transforms\n"
        "crop = transforms.RandomResizedCrop({})\n"
        "net = models.resnet50().cuda()\n"
        "torch.optim.SGD(net.parameters())\n"
        "torch.utils.data.DataLoader(print, batch_size=32)\n"
    )
    small = _activations(source.format(112))
    assert _activations(source.format("(224, 224)")) == pytest.approx(4 * small, 0.05)
    assert "the size of the images is assumed" in str(needs(source.format("n")))
    assert "the size of the images is assumed" not in str(needs(source.format(112)))


def test_a_detector_keeps_what_was_measured_of_it() -> None:
    """Ultralytics measured 3.0 GB more for 16 images than for none."""
    source = (
        "from ultralytics import YOLO\n"
        "YOLO('yolov5s.pt').train(data='coco.yaml', imgsz={}, batch=16)\n"
    )
    (large, small) = (_activations(source.format(side)) for side in (640, 320))
    assert large == pytest.approx(2 * 3.2, rel=0.15)  # numbers of 4 bytes here
    assert large == pytest.approx(4 * small, rel=0.05)


def test_a_batch_of_another_name_counts_unless_it_is_for_evaluation() -> None:
    source = (
        TORCH + "{} = 48\nnet = nn.Linear(9, 10).cuda()\n"
        "torch.optim.Adam(net.parameters())\n"
    )
    assert "a batch of 48" in str(needs(source.format("learner_batch_size"))["lines"])
    assert "a batch of" not in str(needs(source.format("EVAL_BATCH_SIZE"))["lines"])


def test_a_detector_of_torchvision_keeps_what_was_measured_of_it() -> None:
    """torchvision measured 5.2 GB in training with two images; a transform does not
    change the size that the model works on.
    """
    found = needs(
        "import torch\nfrom torchvision import models, transforms\n"
        "transforms.RandomCrop(64)\n"
        "net = models.detection.fasterrcnn_resnet50_fpn().cuda()\n"
        "torch.optim.SGD(net.parameters(), momentum=0.9)\n"
        "torch.utils.data.DataLoader(print, batch_size=2)\n"
    )
    assert found["needed_gb"] == pytest.approx(5.2, abs=0.3)
    assert found["confidence"] == "high"


def test_a_shortcut_begins_from_the_image_of_its_block() -> None:
    """As in a ResNet: without this, each block would halve the image twice."""
    source = (
        TORCH + "class Block(nn.Module):\n"
        "    def __init__(self, inputs, outputs):\n"
        "        super().__init__()\n"
        "        self.conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)\n"
        "        self.shortcut = {}\n"
        "image_size = 256\n"
        "widths = [32, 64, 128, 256, 512, 1024]\n"
        "blocks = [Block(a, b) for a, b in zip(widths, widths[1:])]\n"
        "net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *blocks).cuda()\n"
        "torch.optim.SGD(net.parameters())\n"
        "torch.utils.data.DataLoader(print, batch_size=64)\n"
    )
    plain = _activations(source.format("None"))
    with_shortcuts = source.format("nn.Conv2d(inputs, outputs, 1, stride=2)")
    stem = 1.2 * 32 * 256**2 * 4 * 64 / 1e9
    assert _activations(with_shortcuts) == pytest.approx(2 * plain - stem, rel=0.05)


def test_a_dataset_of_the_program_says_the_size_of_its_images() -> None:
    source = (
        TORCH + "class Streets(torch.utils.data.Dataset):\n"
        "    def __init__(self, img_size={}):\n"
        "        self.img_size = img_size\n"
        "def main():\n"
        "    data = Streets()\n"
        "    net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1)).cuda()\n"
        "    torch.optim.SGD(net.parameters())\n"
        "    torch.utils.data.DataLoader(data, batch_size=10)\n"
        "main()\n"
    )
    numbers = 64 * 400 * 100 * 10
    assert _activations(source.format("(400, 100)")) == pytest.approx(
        1.2 * numbers * 4 / 1e9, rel=0.1
    )
    assert _activations(source.format(200)) == _activations(source.format("(400, 100)"))


def test_a_convolution_and_its_norm_keep_one_output_each() -> None:
    """The activation between the norm and the next layer is kept, the norm's is not."""
    source = (
        TORCH + "image_size = 128\n"
        "block = [nn.Conv2d(64, 64, 3, padding=1), {} nn.ReLU()]\n"
        "net = nn.Sequential(*block, *block).cuda()\n"
        "torch.optim.SGD(net.parameters())\n"
        "torch.utils.data.DataLoader(print, batch_size=64)\n"
    )
    plain = _activations(source.format(""))
    for norm in ("nn.BatchNorm2d(64),", "nn.GroupNorm(8, 64),"):
        assert _activations(source.format(norm)) == pytest.approx(2 * plain, rel=0.02)


def test_precision_amp_is_mixed() -> None:
    source = (
        TORCH + "from somewhere import fit\n"
        "net = nn.Linear(9, 10).cuda()\n"
        "torch.optim.Adam(net.parameters())\nfit(net, precision={!r})\n"
    )
    assert "mixed" in str(needs(source.format("amp_bf16"))["lines"])
    assert "mixed" not in str(needs(source.format("ampere"))["lines"])


@pytest.mark.parametrize(
    "step", ["loss.backward()", "grads = jax.grad(loss)"], ids=["torch", "jax"]
)
def test_a_program_that_takes_gradients_trains(step: str) -> None:
    """Its optimiser is not known, so that of most programs is assumed."""
    source = (
        "import jax, torch\nfrom somewhere import loss\n"
        "from torchvision import models\n"
        "net = models.resnet50().cuda()\n"
        "torch.utils.data.DataLoader(print, batch_size=8)\n"
    )
    assert needs(source)["memory_gb"]["optimiser"] == 0
    found = needs(f"{source}{step}\n")
    assert found["memory_gb"]["optimiser"] == pytest.approx(0.2, abs=0.02)
    assert "the optimiser is not known" in found["confidence_reasons"]
