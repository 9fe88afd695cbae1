"""How programs start, choose a GPU and say their sizes through libraries."""

from collections.abc import Mapping

import pytest

from tests.support.read_programs import needs

TORCH = "import torch\nfrom torch import nn\n"
# Each ends with a model of 100 weights.
_STARTS: Mapping[str, str] = {
    "Lightning's options": (
        "import pytorch_lightning as pl\nfrom argparse import ArgumentParser\n"
        "parser = pl.Trainer.add_argparse_args(ArgumentParser())\n"
        "args = parser.parse_args()\n"
        "trainer = pl.Trainer.from_argparse_args(args)\n"
        "net = nn.Linear(9, 10)\n"
    ),
    "torch.accelerator": (
        "device = torch.accelerator.current_accelerator()\n"
        "net = nn.Linear(9, 10).to(device)\n"
    ),
    "ignite": (
        "import ignite.distributed as idist\n"
        "def training(rank, config):\n"
        "    idist.auto_model(nn.Linear(config['width'], 10))\n"
        "with idist.Parallel(backend='nccl') as parallel:\n"
        "    parallel.run(training, {'width': 9})\n"
    ),
    "Fire with commands": (
        "import fire\n"
        "def train(width=9):\n    nn.Linear(width, 10).cuda()\n"
        "fire.Fire({'train': train, 'test': print})\n"
    ),
}


@pytest.mark.parametrize("lines", _STARTS.values(), ids=_STARTS)
def test_a_program_that_a_library_starts_is_followed(lines: str) -> None:
    found = needs(TORCH + lines)
    assert found["parameters"] == 100
    assert found["needs"]["gpus"] == 1


def test_options_of_lightning_say_how_many_gpus() -> None:
    found = needs(TORCH + _STARTS["Lightning's options"], "--gpus", "3")
    assert found["needs"]["gpus"] == 3


@pytest.mark.parametrize(
    "start",
    ["LightningCLI(Net)", "class Start(LightningCLI):\n    pass\nStart(Net)"],
    ids=["called", "extended"],
)
def test_the_command_of_lightning_makes_model_and_trainer(start: str) -> None:
    source = (
        TORCH + "from lightning import LightningModule\n"
        "from lightning.pytorch.cli import LightningCLI\n"
        "class Net(LightningModule):\n"
        "    def __init__(self, width: int = 9):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(width, 10)\n"
        f"{start}\n"
    )
    assert needs(source)["parameters"] == 100
    words = ("fit", "--model.width", "19", "--trainer.devices", "2")
    found = needs(source, *words)
    assert (found["parameters"], found["needs"]["gpus"]) == (200, 2)


def test_lightning_keeps_the_arguments_of_a_module() -> None:
    found = needs(
        TORCH + "import pytorch_lightning as pl\n"
        "class Net(pl.LightningModule):\n"
        "    def __init__(self, width, height=10):\n"
        "        super().__init__()\n"
        "        self.save_hyperparameters()\n"
        "        self.head = nn.Linear(self.hparams.width, self.hparams.height)\n"
        "pl.Trainer(devices=1).fit(Net(9))\n"
    )
    assert found["parameters"] == 100


def test_a_configuration_of_ml_collections_is_read() -> None:
    flags = (
        TORCH + "from absl import app, flags\n"
        "from ml_collections import config_flags\n"
        "config_flags.DEFINE_config_file('config', 'configs/small.py')\n"
        "def main(argv):\n"
        "    nn.Linear(flags.FLAGS.config.width, 10).cuda()\n"
        "app.run(main)\n"
    )
    small = (
        "import ml_collections\n"
        "def get_config():\n"
        "    config = ml_collections.ConfigDict()\n"
        "    config.width = {}\n"
        "    return config\n"
    )
    others = {"configs/small.py": small.format(9), "configs/large.py": small.format(99)}
    assert needs(flags, others=others)["parameters"] == 100
    found = needs(flags, "--config=configs/large.py", others=others)
    assert found["parameters"] == 1000


def test_words_behind_an_option_that_takes_fewer_are_positional() -> None:
    source = (
        TORCH + "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('width', type=int)\n"
        "parser.add_argument('--seed', type=int)\n"
        "parser.add_argument('--cuda', action='store_true')\n"
        "parser.add_argument('-v', action='count')\n"
        "net = nn.Linear(parser.parse_args().width, 10).cuda()\n"
    )
    for words in (["--seed", "3", "9"], ["--cuda", "9"], ["-v", "9"], ["9"]):
        assert needs(source, *words)["parameters"] == 100


def test_a_parser_has_the_options_of_its_parents() -> None:
    source = (
        TORCH + "from argparse import ArgumentParser\n"
        "first = ArgumentParser()\n"
        "first.add_argument('--width', type=int, default=9)\n"
        "second = ArgumentParser(parents=[first], add_help=False)\n"
        "second.add_argument('--height', type=int, default=10)\n"
        "def net(width, height, **others):\n"
        "    return nn.Linear(width, height)\n"
        "net(**second.parse_args().__dict__).cuda()\n"
    )
    assert needs(source)["parameters"] == 100
    assert needs(source, "--width", "19")["parameters"] == 200


def test_a_name_chooses_from_the_names_of_a_module() -> None:
    others = {"nets.py": TORCH + "def small():\n    return nn.Linear(9, 10)\n"}
    source = "import nets\nnets.__dict__['small']().cuda()\n"
    assert needs(source, others=others)["parameters"] == 100


def test_jax_in_a_module_of_the_program_uses_a_gpu() -> None:
    others = {"steps.py": "from flax import nnx\nstep = nnx.jit(print)\n"}
    assert needs("import steps\n", others=others)["needs"]["gpus"] == 1
    assert needs("from flax import linen as nn\n")["needs"]["gpus"] == 1
    assert needs("import math\n", others=others)["needs"]["gpus"] == 0


def test_a_trainer_of_trl_takes_the_name_of_its_model() -> None:
    found = needs(
        "from trl import SFTTrainer\n"
        "SFTTrainer('Qwen/Qwen2-0.5B', train_dataset=print).train()\n"
    )
    assert found["parameters"] == pytest.approx(494e6, rel=0.01)


_UNSEEN = "from somewhere import fit\nimport torch\ntorch.cuda.init()\nfit()\n"


def test_an_option_that_names_a_known_model_says_its_size() -> None:
    source = (
        "import argparse, torch\nfrom somewhere import fit\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--arch', default='resnet50')\n"
        "fit(parser.parse_args(), torch.device('cuda'))\n"
    )
    found = needs(source)
    (line,) = [each for each in found["lines"] if "`arch`" in each["says"]]
    assert "25.6 M parameters" in line["says"]
    assert (line["path"], line["line"]) == ("train.py", 4)
    assert found["confidence"] == "medium"
    found = needs(source, "--arch", "resnet18")
    (line,) = [each for each in found["lines"] if "`arch`" in each["says"]]
    assert "resnet18" in line["says"]
    assert "11.7 M parameters" in line["says"]
    assert line["line"] is None


def test_a_file_that_the_command_line_names_says_model_and_adapter() -> None:
    config = (
        "model:\n  _component_: torchtune.models.llama2.{}llama2_7b\n"
        "  lora_rank: 16\ndtype: bf16\n"
    )
    others = {
        "plain.yaml": config.format(""),
        "lora.yaml": config.format("lora_"),
        "qlora.yaml": config.format("qlora_"),
    }
    states = {
        name: needs(_UNSEEN, "--config", name, others=others)["memory_gb"]
        for name in others
    }
    assert states["plain.yaml"]["weights"] == pytest.approx(14, abs=0.5)
    assert states["plain.yaml"]["gradients"] == pytest.approx(14, abs=0.5)
    assert states["lora.yaml"]["weights"] == pytest.approx(14, abs=0.5)
    assert states["lora.yaml"]["gradients"] < 0.2
    assert states["qlora.yaml"]["weights"] == pytest.approx(4, abs=0.5)


def test_options_ask_for_adapters() -> None:
    source = (
        "import argparse\nfrom transformers import AutoModelForCausalLM, Trainer\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--use_peft', action='store_true')\n"
        "parser.add_argument('--lora_r', type=int, default=32)\n"
        "args = parser.parse_args()\n"
        "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2-0.5B')\n"
        "Trainer(model=model).train()\n"
    )
    assert needs(source)["trainable_parameters"] == pytest.approx(494e6, rel=0.01)
    found = needs(source, "--use_peft")
    assert found["trainable_parameters"] < 10e6
    assert any("rank 32" in line["says"] for line in found["lines"])


@pytest.mark.parametrize(
    ("component", "in_backward", "gradients", "optimiser"),
    [
        ("torch.optim.AdamW", False, 14, 28),
        ("bitsandbytes.optim.AdamW8bit", False, 14, 14),
        ("bitsandbytes.optim.PagedAdamW", False, 14, 0),
        ("torch.optim.AdamW", True, 0, 28),
    ],
)
def test_what_an_optimiser_keeps_of_half_weights(
    component: str, in_backward: bool, gradients: float, optimiser: float
) -> None:
    """Of 7 billion weights. Pages leave the GPU, and an optimiser that runs in the
    backward pass needs no gradients at its end.
    """
    config = (
        "model:\n  _component_: torchtune.models.llama2.llama2_7b\ndtype: bf16\n"
        f"optimizer:\n  _component_: {component}\noptimizer_in_bwd: {in_backward}\n"
    )
    found = needs(_UNSEEN, "--config", "c.yaml", others={"c.yaml": config})
    assert found["memory_gb"]["gradients"] == pytest.approx(gradients, abs=0.1)
    assert found["memory_gb"]["optimiser"] == pytest.approx(optimiser, abs=0.1)


_UNET = "UNet2DConditionModel.from_pretrained('CompVis/stable-diffusion-v1-4'"
_DIFFUSION = (
    "import torch\nfrom diffusers import StableDiffusionPipeline, UNet2DConditionModel\n"
    "from diffusers.training_utils import EMAModel\n"
    f"unet = {_UNET}, subfolder='unet').cuda()\n"
    "optimizer = torch.optim.AdamW(unet.parameters())\n"
)


@pytest.mark.parametrize(
    "lines",
    [
        "average = EMAModel(unet.parameters())\n",
        f"average = {_UNET}, subfolder='unet')\n"
        "average = EMAModel(average.parameters())\n",
    ],
    ids=["of the model", "of another"],
)
def test_an_average_of_weights_is_not_trained(lines: str) -> None:
    found = needs(_DIFFUSION + lines)
    assert found["parameters"] == pytest.approx(2 * 859.5e6, rel=0.01)
    assert found["trainable_parameters"] == pytest.approx(859.5e6, rel=0.01)


def test_a_pipeline_takes_the_parts_that_the_program_made() -> None:
    begin = "StableDiffusionPipeline.from_pretrained('CompVis/stable-diffusion-v1-4'"
    whole = needs(_DIFFUSION + f"{begin})\n")["parameters"]
    shared = needs(_DIFFUSION + f"{begin}, unet=unet)\n")["parameters"]
    assert whole - shared == pytest.approx(859.5e6, rel=0.01)


@pytest.mark.parametrize(
    ("width", "depth", "millions"), [(384, 12, 22.05), (768, 12, 86.57)]
)
def test_a_vision_transformer_has_the_weights_of_its_sizes(
    width: int, depth: int, millions: float
) -> None:
    found = needs(
        "from timm.models.vision_transformer import VisionTransformer\n"
        f"VisionTransformer(embed_dim={width}, depth={depth}).cuda()\n"
    )
    assert found["parameters"] == pytest.approx(millions * 1e6, rel=0.01)


def test_a_known_environment_says_its_spaces() -> None:
    found = needs(
        TORCH + "import gymnasium as gym\n"
        "envs = gym.make('CartPole-v1')\n"
        "inputs = envs.observation_space.shape[0]\n"
        "net = nn.Linear(inputs, envs.action_space.n).cuda()\n"
    )
    assert found["parameters"] == 4 * 2 + 2


@pytest.mark.parametrize("vector", ["SyncVectorEnv", "AsyncVectorEnv"])
def test_environments_around_a_known_one_have_its_spaces(vector: str) -> None:
    found = needs(
        TORCH + "import gymnasium as gym\nimport numpy as np\n"
        "def maker(name):\n"
        "    def make():\n"
        "        return gym.wrappers.RecordEpisodeStatistics(gym.make(name))\n"
        "    return make\n"
        f"envs = gym.vector.{vector}([maker('Hopper-v4') for _ in range(3)])\n"
        "inputs = np.array(envs.single_observation_space.shape).prod()\n"
        "actions = np.prod(envs.single_action_space.shape)\n"
        "net = nn.Linear(inputs, actions).cuda()\n"
    )
    assert found["parameters"] == 11 * 3 + 3


@pytest.mark.parametrize(
    ("call", "most"),
    [("PPO('MlpPolicy', 'CartPole-v1')", 0.1), ("PPO('CnnPolicy', make())", 2)],
)
def test_an_algorithm_of_stable_baselines_has_its_usual_net(
    call: str, most: float
) -> None:
    found = needs(
        "from somewhere import make\nfrom stable_baselines3 import PPO\n"
        f"model = {call}\nmodel.learn(1000)\n"
    )
    assert 0 < found["parameters"] < most * 1e6
    assert found["confidence"] == "medium"
    assert found["needs"]["gpus"] == 1


def test_data_of_a_package_are_not_those_of_each_program() -> None:
    others = {
        "examples/__init__.py": (
            "from torchvision.datasets import MNIST\nMNIST('data', download=True)\n"
        )
    }
    found = needs(
        TORCH + "import examples\nnet = nn.Linear(9, 10).cuda()\n", others=others
    )
    assert "60,000 examples" not in str(found["lines"])


_NNX: Mapping[str, tuple[str, int]] = {
    "Linear": ("nnx.Linear(9, 10, rngs=rngs)", 100),
    "without bias": ("nnx.Linear(9, 10, use_bias=False, rngs=rngs)", 90),
    "Conv": ("nnx.Conv(3, 8, kernel_size=(3, 3), rngs=rngs)", 224),
    "Conv by names": (
        "nnx.Conv(in_features=4, out_features=8, kernel_size=3,"
        " feature_group_count=2, rngs=rngs)",
        56,
    ),
    "Embed": ("nnx.Embed(num_embeddings=50, features=8, rngs=rngs)", 400),
    "LayerNorm": ("nnx.LayerNorm(num_features=8, rngs=rngs)", 16),
    "GroupNorm": ("nnx.GroupNorm(64, num_groups=8, rngs=rngs)", 128),
    "MultiHeadAttention": (
        "nnx.MultiHeadAttention(4, in_features=64, rngs=rngs)",
        4 * 64 * 64 + 4 * 64,
    ),
    "Sequential": ("nnx.Sequential(nnx.Linear(4, 4, rngs=rngs), nnx.relu)", 20),
}


@pytest.mark.parametrize(("layer", "weights"), _NNX.values(), ids=_NNX)
def test_layers_of_flax_nnx_have_their_weights(layer: str, weights: int) -> None:
    found = needs(
        "from flax import nnx\nimport optax\n"
        "class Net(nnx.Module):\n"
        "    def __init__(self, rngs):\n"
        f"        self.layer = {layer}\n"
        "net = Net(nnx.Rngs(0))\n"
        "optimizer = nnx.Optimizer(net, optax.sgd(0.1, 0.9))\n"
        "step = nnx.jit(print)\n"
    )
    assert found["parameters"] == weights
    assert any("4 bytes" in line["says"] for line in found["lines"])
