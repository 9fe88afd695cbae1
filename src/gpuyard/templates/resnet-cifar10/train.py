"""Train a ResNet to tell pictures of ten classes apart: `python train.py`.

`--data FOLDER` reads CIFAR-10 in its binary version. Without it the pictures are made:
stripes of ten directions and colours under noise.
"""

import argparse
import math
import sys
from pathlib import Path

from report import missing_library, say

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F

    from training import State, parse, pick_device, train
except ImportError as error:
    sys.exit(missing_library(error))

SIZES = {
    "tiny": {"steps": 200, "batch_size": 64, "lr": 0.05, "width": 8},
    "resnet18": {"steps": 20_000, "batch_size": 512, "lr": 0.2, "width": 64},
}
CLASSES = 10
PICTURE = (3, 32, 32)
MADE = 2000
# A label, and three planes of 32 × 32 bytes.
RECORD_BYTES = 1 + math.prod(PICTURE)


class Block(nn.Module):
    """Two convolutions, and the way past them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.past: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            shrink = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.past = nn.Sequential(shrink, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(inner)) + self.past(x))


def resnet(width: int) -> nn.Module:
    """ResNet-18 for small pictures; of 64 channels at first in the paper's size."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        layers.append(Block(inputs, outputs, stride=1 if stage == 0 else 2))
        layers.append(Block(outputs, outputs, stride=1))
        inputs = outputs
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES)]
    return nn.Sequential(*layers, *head)


def made_pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pictures of shape (count, 3, 32, 32) around 0, and their classes."""
    chance = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=chance)
    stripes = made_stripes(labels, chance)
    # Each class has more of some of the three colours.
    is_strong = torch.stack([labels % n == 0 for n in (2, 3, 5)], dim=1)
    strength = 0.5 + is_strong.float()
    pictures = stripes[:, None, :, :] * strength[:, :, None, None]
    noise = torch.randn(count, *PICTURE, generator=chance)
    return pictures + 0.5 * noise, labels


def made_stripes(labels: Tensor, chance: torch.Generator) -> Tensor:
    """Stripes of shape (count, 32, 32) between -1 and 1, in the direction of the
    class, and each beginning anywhere.
    """
    angle = (labels * (math.pi / CLASSES))[:, None, None]
    places = torch.arange(32)
    rows, columns = torch.meshgrid(places, places, indexing="ij")
    across = angle.cos() * columns + angle.sin() * rows
    shift = torch.rand(len(labels), generator=chance) * 2 * math.pi
    return torch.sin(across / 2 + shift[:, None, None])


def read_pictures(files: list[Path]) -> tuple[Tensor, Tensor]:
    """The pictures of files of CIFAR-10's binary version."""
    content = b"".join(file.read_bytes() for file in files)
    if not content or len(content) % RECORD_BYTES:
        raise ValueError(f"{files} are not CIFAR-10's binary version")
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    records = records.view(-1, RECORD_BYTES)
    pictures = records[:, 1:].view(-1, *PICTURE).float()
    return pictures / 64 - 2, records[:, 0].long()


def training_pictures(data: str | None) -> tuple[Tensor, Tensor]:
    """What to learn from."""
    if data is None:
        return made_pictures(MADE, seed=1)
    return read_pictures(sorted(Path(data).rglob("data_batch_*.bin")))


def held_out_pictures(data: str | None) -> tuple[Tensor, Tensor]:
    """What to test with."""
    if data is None:
        return made_pictures(MADE // 4, seed=2)
    return read_pictures(sorted(Path(data).rglob("test_batch.bin")))


class Classifier:
    """The network, its optimiser and its pictures."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = pick_device()
        (self.pictures, self.labels) = training_pictures(options.data)
        (self.test_pictures, self.test_labels) = held_out_pictures(options.data)
        self.model = resnet(options.width).to(self.device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=options.lr, momentum=0.9, weight_decay=5e-4
        )
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, options.lr, total_steps=options.steps + 1
        )

    def step(self) -> dict[str, float]:
        self.model.train()
        chosen = torch.randint(len(self.labels), (self.options.batch_size,))
        pictures = self.pictures[chosen].to(self.device)
        labels = self.labels[chosen].to(self.device)
        # A car seen from the other side is a car; stripes would lead elsewhere.
        is_mirrored = torch.rand(()) < 0.5
        if self.options.data and is_mirrored:
            pictures = pictures.flip(-1)
        loss = F.cross_entropy(self.model(pictures), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return {"loss": loss.item(), "lr": self.schedule.get_last_lr()[0]}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        self.model.eval()
        found: list[Tensor] = []
        for pictures in self.test_pictures.split(256):
            logits = self.model(pictures.to(self.device))
            found.append(logits.argmax(dim=1).cpu())
        is_right = torch.cat(found) == self.test_labels
        return {"test_accuracy": is_right.float().mean().item()}

    def state(self) -> State:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
        }

    def restore(self, state: State) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])


def main() -> int:
    options = parse("Train a ResNet on CIFAR-10.", SIZES, data=None)
    try:
        classifier = Classifier(options)
    except (OSError, ValueError) as error:
        print(f"error: --data: {error}", file=sys.stderr)
        return 2
    say(f"{len(classifier.labels)} pictures on {classifier.device}")
    return train(classifier, options)


if __name__ == "__main__":
    sys.exit(main())
