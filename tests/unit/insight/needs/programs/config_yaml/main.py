import hydra
import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from torchvision.datasets import CIFAR100


class Classifier(pl.LightningModule):
    def __init__(self, net, lr):
        super().__init__()
        self.net = net
        self.lr = lr

    def configure_optimizers(self):
        return torch.optim.AdamW(self.net.parameters(), lr=self.lr)


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    net = hydra.utils.instantiate(cfg.model)
    module = Classifier(net, cfg.optimizer.lr)
    loader = torch.utils.data.DataLoader(
        CIFAR100("data"), batch_size=cfg.trainer.batch_size
    )
    trainer = pl.Trainer(
        accelerator="gpu", devices=cfg.trainer.gpus, max_epochs=cfg.trainer.max_epochs
    )
    trainer.fit(module, loader)


if __name__ == "__main__":
    main()
