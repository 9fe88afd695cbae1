import argparse

import timm
import torch
from torch.cuda.amp import GradScaler, autocast
from torchvision.datasets import Food101

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="vit_base_patch16_224")
parser.add_argument("--num-classes", type=int, default=101)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=5)


def main(args):
    model = timm.create_model(args.model, pretrained=True, num_classes=args.num_classes)
    model = model.to("cuda")
    loader = torch.utils.data.DataLoader(
        Food101("data", split="train"), batch_size=args.batch_size
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = GradScaler()
    for epoch in range(args.epochs):
        for x, y in loader:
            with autocast():
                loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


if __name__ == "__main__":
    main(parser.parse_args())
