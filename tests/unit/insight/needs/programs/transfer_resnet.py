import torch
import torch.nn as nn
from torchvision import datasets, models

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
image_datasets = {x: datasets.ImageFolder(f"hymenoptera/{x}") for x in ["train", "val"]}
dataloaders = {
    x: torch.utils.data.DataLoader(image_datasets[x], batch_size=4, shuffle=True)
    for x in ["train", "val"]
}
model_ft = models.mobilenet_v2(weights="IMAGENET1K_V2")
for param in model_ft.parameters():
    param.requires_grad = False
model_ft.classifier[1] = nn.Linear(model_ft.classifier[1].in_features, 2)
model_ft = model_ft.to(device)
optimizer = torch.optim.SGD(model_ft.classifier.parameters(), lr=0.001, momentum=0.9)
for epoch in range(25):
    for inputs, labels in dataloaders["train"]:
        loss = nn.functional.cross_entropy(
            model_ft(inputs.to(device)), labels.to(device)
        )
        loss.backward()
        optimizer.step()
