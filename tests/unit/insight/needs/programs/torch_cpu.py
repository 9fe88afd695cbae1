import torch
from torch import nn

model = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 1))
x, y = torch.randn(506, 13), torch.randn(506, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(500):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
