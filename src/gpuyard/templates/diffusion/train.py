"""Train a diffusion model that draws pictures: `python train.py`.

It learns to take noise away (DDPM with a cosine schedule) from pictures that the
program makes, discs and squares, or from the PPM pictures of `--data FOLDER`.
`OUT/sample.ppm` shows what it draws.
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
    "tiny": {"steps": 300, "batch_size": 32, "lr": 2e-3, "width": 16, "pixels": 16},
    "gpu": {
        "steps": 50_000,
        "batch_size": 128,
        "lr": 2e-4,
        "width": 128,
        "pixels": 64,
    },
}
LEVELS = 200
"""Steps from a picture to noise."""
TESTED = 64
DRAWN = 8


class Layer(nn.Module):
    """A convolution that knows how noisy its input is."""

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.before = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.level = nn.Linear(width, outputs)
        self.norm = nn.GroupNorm(min(8, outputs), outputs)
        self.after = nn.Conv2d(outputs, outputs, 3, padding=1)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        x = F.silu(self.before(x)) + self.level(level)[:, :, None, None]
        return F.silu(self.after(self.norm(x)))


class UNet(nn.Module):
    """Down to a quarter of the size and up again; predicts the noise in a picture."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.level = nn.Sequential(nn.Linear(width, width), nn.SiLU())
        self.down = Layer(3, width, width)
        self.further = Layer(width, 2 * width, width)
        self.middle = Layer(2 * width, 2 * width, width)
        self.up = Layer(4 * width, width, width)
        self.last = Layer(2 * width, width, width)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        known = self.level(self._waves(level))
        whole = self.down(x, known)
        half = self.further(F.avg_pool2d(whole, 2), known)
        quarter = self.middle(F.avg_pool2d(half, 2), known)
        # On the way up, each size also sees what it was on the way down.
        half_again = self.up(beside(enlarged(quarter), half), known)
        whole_again = self.last(beside(enlarged(half_again), whole), known)
        return self.out(whole_again)

    def _waves(self, level: Tensor) -> Tensor:
        """The level as sines and cosines of different lengths: (batch, width)."""
        steps = torch.arange(self.width // 2, device=level.device)
        frequencies = torch.exp(-8 * steps / self.width)
        angles = level[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=1)


def beside(first: Tensor, second: Tensor) -> Tensor:
    """The channels of both."""
    return torch.cat([first, second], dim=1)


def enlarged(x: Tensor) -> Tensor:
    """Twice as high and twice as wide."""
    return F.interpolate(x, scale_factor=2)


def made_pictures(count: int, pixels: int) -> Tensor:
    """Discs and squares of random place, size and colour: (count, 3, pixels, pixels),
    from -1 to 1.
    """
    centre = pixels * (0.25 + 0.5 * torch.rand(count, 2, 1, 1))
    radius = pixels * (0.1 + 0.15 * torch.rand(count, 1, 1))
    places = torch.arange(pixels)
    rows, columns = torch.meshgrid(places, places, indexing="ij")
    across = (columns - centre[:, 0]).abs()
    down = (rows - centre[:, 1]).abs()
    is_disc = torch.rand(count, 1, 1) < 0.5
    in_disc = across**2 + down**2 < radius**2
    in_square = torch.maximum(across, down) < radius
    shape = torch.where(is_disc, in_disc, in_square)
    colour = torch.rand(count, 3, 1, 1)
    return 2 * shape[:, None].float() * colour - 1


def read_picture(path: Path, pixels: int) -> Tensor:
    """A binary PPM as (3, pixels, pixels), from -1 to 1; ValueError."""
    content = path.read_bytes()
    words = content.split(maxsplit=4)
    if len(words) < 5 or words[0] != b"P6" or words[3] != b"255":
        raise ValueError(f"{path} is no binary PPM with 8 bits")
    width = int(words[1])
    height = int(words[2])
    colours = bytearray(content[-3 * width * height :])
    values = torch.frombuffer(colours, dtype=torch.uint8)
    channels = values.view(height, width, 3).permute(2, 0, 1)
    picture = channels.float() / 127.5 - 1
    return F.interpolate(picture[None], (pixels, pixels), mode="area")[0]


def write_picture(pictures: Tensor, path: Path) -> None:
    """Pictures from -1 to 1 beside each other, as a binary PPM."""
    row = torch.cat(list(pictures.clamp(-1, 1)), dim=2)
    values = ((row + 1) * 127.5).byte().permute(1, 2, 0).contiguous()
    (height, width, _) = values.shape
    header = f"P6 {width} {height} 255\n".encode()
    path.write_bytes(header + bytes(values.flatten().tolist()))


def read_pictures(options: argparse.Namespace) -> Tensor:
    """The pictures of the folder `--data`; ValueError if there are none."""
    files = sorted(Path(options.data).glob("*.ppm"))
    if not files:
        raise ValueError(f"{options.data} has no .ppm files")
    return torch.stack([read_picture(file, options.pixels) for file in files])


def clean_shares() -> Tensor:
    """How much of a picture is left at each level: from 1 to nearly 0, along a
    cosine.
    """
    level = torch.arange(LEVELS + 1) / LEVELS
    share = torch.cos((level + 0.01) / 1.01 * math.pi / 2) ** 2
    return share / share[0]


class Diffusion:
    """The network, its optimiser and its pictures."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = pick_device()
        self.model = UNet(options.width).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)
        self.clean = clean_shares().to(self.device)
        self.pictures = read_pictures(options) if options.data else None
        self.tested = self._batch(TESTED)

    def _batch(self, count: int) -> Tensor:
        if self.pictures is None:
            return made_pictures(count, self.options.pixels).to(self.device)
        chosen = torch.randint(len(self.pictures), (count,))
        return self.pictures[chosen].to(self.device)

    def _loss(self, pictures: Tensor, level: Tensor, noise: Tensor) -> Tensor:
        share = self.clean[level][:, None, None, None]
        noisy = share.sqrt() * pictures + (1 - share).sqrt() * noise
        return F.mse_loss(self.model(noisy, level.float()), noise)

    def step(self) -> dict[str, float]:
        pictures = self._batch(self.options.batch_size)
        level = torch.randint(1, LEVELS, (len(pictures),)).to(self.device)
        noise = torch.randn(pictures.shape).to(self.device)
        loss = self._loss(pictures, level, noise)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return {"loss": loss.item()}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        chance = torch.Generator().manual_seed(1)
        level = torch.linspace(1, LEVELS - 1, TESTED).long().to(self.device)
        noise = torch.randn(self.tested.shape, generator=chance).to(self.device)
        return {"val_loss": self._loss(self.tested, level, noise).item()}

    @torch.no_grad()
    def draw(self, count: int) -> Tensor:
        """New pictures, out of noise."""
        pixels = self.options.pixels
        picture = torch.randn(count, 3, pixels, pixels).to(self.device)
        for level in range(LEVELS - 1, 0, -1):
            levels = torch.full((count,), float(level), device=self.device)
            noise = self.model(picture, levels)
            clean = self._without(noise, picture, level).clamp(-1, 1)
            picture = self._with(noise, clean, level - 1)
        return picture.cpu()

    def _with(self, noise: Tensor, clean: Tensor, level: int) -> Tensor:
        """A clean picture as it is at a level of noise."""
        share = self.clean[level]
        return share.sqrt() * clean + (1 - share).sqrt() * noise

    def _without(self, noise: Tensor, noisy: Tensor, level: int) -> Tensor:
        """The clean picture, of which that is left at a level of noise."""
        share = self.clean[level]
        return (noisy - (1 - share).sqrt() * noise) / share.sqrt()

    def state(self) -> State:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "tested": self.tested,
        }

    def restore(self, state: State) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.tested = state["tested"].to(self.device)


def main() -> int:
    options = parse("Train a diffusion model.", SIZES, data=None)
    try:
        diffusion = Diffusion(options)
    except (OSError, ValueError) as error:
        print(f"error: --data: {error}", file=sys.stderr)
        return 2
    code = train(diffusion, options)
    if code == 0:
        write_picture(diffusion.draw(DRAWN), options.out / "sample.ppm")
        say(f"drew {options.out / 'sample.ppm'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
