"""What a program keeps beside what it trains: averages, targets, teachers, templates."""

import pytest

from tests.support.read_programs import needs

# A hundred million weights: 0.4 GB, and 1.6 GB with gradients and Adam.
NET = """
import copy, itertools
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(10_000, 10_000, bias=False)
    def forward(self, x):
        return self.layer(x)
class Average(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = copy.deepcopy(model).eval()
net = Net().cuda()
"""
TRAINED = "optimizer = torch.optim.Adam(net.parameters())\n"


def memory(source: str) -> tuple[float, float, float]:
    """The weights, the gradients and the optimiser, in GB."""
    found = needs(source)["memory_gb"]
    parts = (found["weights"], found["gradients"], found["optimiser"])
    return tuple(round(part, 1) for part in parts)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "beside",
    [
        "ema = copy.deepcopy(net)\n",
        "ema = Average(net)\n",
        "target = Net().cuda()\ntarget.load_state_dict(net.state_dict())\n",
        "from timm.utils import ModelEmaV2\nema = ModelEmaV2(net)\n",
        "from timm.utils import ModelEmaV3\nema = ModelEmaV3(net)\n",
        "from torch_ema import ExponentialMovingAverage\n"
        "ema = ExponentialMovingAverage(net.parameters(), decay=0.99)\n",
        "from ema_pytorch import EMA\nema = EMA(net, beta=0.99)\n",
    ],
)
def test_a_copy_of_the_weights_counts_once_and_is_not_trained(beside: str) -> None:
    assert memory(NET + TRAINED) == (0.4, 0.4, 0.8)
    assert memory(NET + beside + TRAINED) == (0.8, 0.4, 0.8)


@pytest.mark.parametrize(
    "trained",
    [
        "list(net.parameters()) + list(other.parameters())",
        "itertools.chain(net.parameters(), other.parameters())",
        "[{'params': net.parameters()}, {'params': other.parameters(), 'lr': 1}]",
        "[p for m in (net, other) for p in m.parameters()]",
    ],
)
def test_what_an_optimiser_is_given_is_trained(trained: str) -> None:
    source = f"{NET}other = Net().cuda()\nteacher = Net().cuda()\n"
    source += "teacher.requires_grad_(False)\n"
    assert memory(f"{source}torch.optim.Adam({trained})\n") == (1.2, 0.8, 1.6)


@pytest.mark.parametrize(
    "trained",
    [
        "filter(lambda p: p.requires_grad, net.parameters())",
        "[p for p in net.parameters() if p.requires_grad]",
        "[p for name, p in net.named_parameters() if 'bias' not in name]",
    ],
)
def test_what_no_optimiser_is_given_is_not_trained(trained: str) -> None:
    source = f"{NET}teacher = Net().cuda()\ntorch.optim.Adam({trained})\n"
    assert memory(source) == (0.8, 0.4, 0.8)


def test_a_trainer_of_a_library_may_train_anything() -> None:
    source = f"{NET}critic = Net().cuda()\n{TRAINED}"
    source += "from somewhere import Trainer\nTrainer(critic).fit()\n"
    assert memory(source) == (0.8, 0.8, 1.6)


def test_a_layer_that_is_only_copied_takes_no_memory() -> None:
    source = """
import copy, torch
from torch import nn
def clones(layer, count):
    return nn.ModuleList([copy.deepcopy(layer) for _ in range(count)])
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = clones(nn.Linear(width, width, bias=False), 4)
class Encoder(nn.Module):
    def __init__(self, block, count):
        super().__init__()
        self.blocks = clones(block, count)
model = Encoder(Block(5000), 6).cuda()
optimizer = torch.optim.Adam(model.parameters())
"""
    assert memory(source) == (2.4, 2.4, 4.8)


PARTS = """
import argparse, itertools, torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import PretrainedConfig
def text_class(name):
    kind = PretrainedConfig.from_pretrained(name).architectures[0]
    if kind == "CLIPTextModel":
        from transformers import CLIPTextModel
        return CLIPTextModel
    raise ValueError(kind)
parser = argparse.ArgumentParser()
parser.add_argument("--base", default="runwayml/stable-diffusion-v1-5")
parser.add_argument("--train_text", action="store_true")
args = parser.parse_args()
text = text_class(args.base).from_pretrained(args.base, subfolder="text_encoder").cuda()
unet = UNet2DConditionModel.from_pretrained(args.base, subfolder="unet").cuda()
vae = AutoencoderKL.from_pretrained(args.base, subfolder="vae").cuda()
vae.requires_grad_(False)
if not args.train_text:
    text.requires_grad_(False)
both = itertools.chain(unet.parameters(), text.parameters())
torch.optim.AdamW(both if args.train_text else unet.parameters())
"""


def test_all_parts_of_a_diffusion_model_count_whatever_their_classes_are() -> None:
    frozen = needs(PARTS)
    trained = needs(PARTS, "--train_text")
    assert frozen["parameters"] == trained["parameters"]
    assert frozen["parameters"] == pytest.approx(1.066e9, rel=0.01)
    more = trained["memory_gb"]["optimiser"] - frozen["memory_gb"]["optimiser"]
    assert more == pytest.approx(8 * 0.123, rel=0.01)


@pytest.mark.parametrize(
    ("call", "millions"),
    [
        ("Transformer(d_model=512, d_ff=2048, n_layers=6, n_head=8)", 18.9),
        ("Translator(src_pad=1, trg_pad=1, d_model=512, n_layers=6, n_head=8)", 44.0),
        ("GPT(**{'n_embd': 1024, 'n_layer': 24, 'n_head': 16})", 302.0),
        ("LM(Args(dim=1024, n_layers=24, n_heads=16, vocab_size=32000))", 367.5),
        ("ViT(image_size=256, patch_size=32, dim=1024, depth=6, heads=16)", 78.6),
    ],
)
def test_a_transformer_that_cannot_be_read_has_the_size_that_its_call_says(
    call: str, millions: float
) -> None:
    found = needs(
        "import torch\nfrom elsewhere import Transformer, Translator, GPT, LM, Args, ViT\n"
        f"model = {call}.cuda()\ntorch.optim.Adam(model.parameters())\n"
    )
    assert found["parameters"] == pytest.approx(millions * 1e6, rel=0.01)
    assert found["confidence"] != "high"


@pytest.mark.parametrize(
    "call",
    ["Plot(dim=3, depth=2)", "Forest(depth=6, num_heads=2)", "ModelConfig(dim=8)"],
)
def test_what_only_looks_a_little_like_one_is_none(call: str) -> None:
    found = needs(f"from elsewhere import *\nimport elsewhere\nx = elsewhere.{call}\n")
    assert found["parameters"] is None
