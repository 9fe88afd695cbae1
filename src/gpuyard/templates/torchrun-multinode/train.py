"""Train one model in many processes on several machines: `sh launch.sh`.

Each process learns from its own share of the data, which the program makes, and all
agree on each step (DistributedDataParallel). The processes of GPUs talk over NCCL,
others over Gloo. Only the first writes checkpoints.
"""

import argparse
import os
import sys

from report import missing_library, say

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.nn import functional as F
    from torch.nn.parallel import DistributedDataParallel

    from training import State, parse, train
except ImportError as error:
    sys.exit(missing_library(error))

SIZES = {
    "tiny": {"steps": 200, "batch_size": 64, "lr": 3e-3, "width": 64},
    "large": {"steps": 20_000, "batch_size": 1024, "lr": 3e-4, "width": 8192},
}
INPUTS = 32
CLASSES = 8
TESTED = 512


def made_batch(teacher: nn.Module, count: int) -> tuple[Tensor, Tensor]:
    """Points, and the classes that a network that never changes gives them."""
    points = torch.randn(count, INPUTS)
    with torch.no_grad():
        return points, teacher(points).argmax(dim=1)


def network(width: int) -> nn.Sequential:
    """A network with two inner layers."""
    return nn.Sequential(
        nn.Linear(INPUTS, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    )


class Classifier:
    """This process's part of the model, its optimiser and its data."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options = options
        self.device = device
        torch.manual_seed(options.seed)
        self.teacher = network(16)
        self.tested = made_batch(self.teacher, TESTED)
        inner = network(options.width).to(device)
        self.model = DistributedDataParallel(inner)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)
        self.done = 0

    def step(self) -> dict[str, float]:
        # So each process has other data, and a step its own wherever it begins.
        torch.manual_seed(self.done * dist.get_world_size() + dist.get_rank() + 1)
        points, classes = made_batch(self.teacher, self.options.batch_size)
        logits = self.model(points.to(self.device))
        loss = F.cross_entropy(logits, classes.to(self.device))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.done += 1
        mean = loss.detach()
        dist.all_reduce(mean)
        return {"loss": mean.item() / dist.get_world_size()}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        points, classes = self.tested
        found = self.model.module(points.to(self.device)).argmax(dim=1).cpu()
        return {"test_accuracy": float((found == classes).float().mean())}

    def state(self) -> State:
        return {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "done": self.done,
        }

    def restore(self, state: State) -> None:
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]


def main() -> int:
    options = parse("Train in many processes.", SIZES)
    if "RANK" not in os.environ:
        print("error: torchrun starts this program: sh launch.sh", file=sys.stderr)
        return 2
    has_gpus = torch.cuda.is_available()
    device = torch.device("cpu")
    if has_gpus:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpus else "gloo")
    try:
        if dist.get_rank() == 0:
            say(f"{dist.get_world_size()} processes on {device.type}")
        classifier = Classifier(options, device)
        return train(classifier, options, writes=dist.get_rank() == 0)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
