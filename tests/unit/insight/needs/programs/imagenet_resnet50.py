import argparse

import torch
import torch.multiprocessing as mp
import torchvision.datasets as datasets
import torchvision.models as models

model_names = sorted(name for name in models.__dict__ if name.islower())
parser = argparse.ArgumentParser(description="ImageNet")
parser.add_argument("data", nargs="?", default="imagenet")
parser.add_argument("-a", "--arch", default="resnet18", choices=model_names)
parser.add_argument("-b", "--batch-size", default=256, type=int)
parser.add_argument("--epochs", default=90, type=int)
parser.add_argument("--lr", default=0.1, type=float)
parser.add_argument("--world-size", default=-1, type=int)
parser.add_argument("--gpu", default=None, type=int)
parser.add_argument("--multiprocessing-distributed", action="store_true")


def main():
    args = parser.parse_args()
    args.distributed = args.world_size > 1 or args.multiprocessing_distributed
    ngpus = torch.cuda.device_count() if torch.cuda.is_available() else 1
    if args.multiprocessing_distributed:
        mp.spawn(main_worker, nprocs=ngpus, args=(ngpus, args))
    else:
        main_worker(args.gpu, ngpus, args)


def main_worker(gpu, ngpus, args):
    args.gpu = gpu
    model = models.__dict__[args.arch]()
    if args.gpu is not None:
        model = model.cuda(args.gpu)
    else:
        model = torch.nn.DataParallel(model).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    train_dataset = datasets.ImageFolder(args.data + "/train")
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=args.batch_size
    )
    for epoch in range(args.epochs):
        train(train_loader, model, optimizer, epoch)


def train(loader, model, optimizer, epoch):
    for images, target in loader:
        loss = torch.nn.functional.cross_entropy(model(images), target)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
