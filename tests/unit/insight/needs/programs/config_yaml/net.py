from functools import partial

from torch import nn


def feed_forward(dim, expansion=4, dense=nn.Linear):
    inner = int(dim * expansion)
    return nn.Sequential(dense(dim, inner), nn.GELU(), dense(inner, dim))


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.fn = fn
        self.norm = nn.LayerNorm(dim)


class Mixer(nn.Sequential):
    def __init__(self, dim, depth, num_classes, patches=64):
        chan = partial(nn.Conv1d, kernel_size=1)
        super().__init__(
            nn.Linear(48, dim),
            *[
                nn.Sequential(
                    PreNorm(dim, feed_forward(patches, 4, chan)),
                    PreNorm(dim, feed_forward(dim, 0.5)),
                )
                for _ in range(depth)
            ],
            nn.LayerNorm(dim),
            nn.Linear(dim, num_classes),
        )
