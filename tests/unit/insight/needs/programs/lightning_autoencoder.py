import lightning as L
import torch
from torch import nn
from torchvision.datasets import MNIST


class LitAutoEncoder(L.LightningModule):
    def __init__(self, hidden=64, bottleneck=3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(
            nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, bottleneck)
        )
        self.decoder = nn.Sequential(
            nn.Linear(bottleneck, hidden), nn.ReLU(), nn.Linear(hidden, 784)
        )

    def training_step(self, batch, batch_idx):
        x = batch[0].view(batch[0].size(0), -1)
        return nn.functional.mse_loss(self.decoder(self.encoder(x)), x)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(MNIST("data"), batch_size=256)


if __name__ == "__main__":
    model = LitAutoEncoder()
    trainer = L.Trainer(max_epochs=10, accelerator="gpu", devices=2, strategy="ddp")
    trainer.fit(model)
