from accelerate import Accelerator
from datasets import load_dataset
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer

MAX_GPU_BATCH_SIZE = 16


def training_function(config):
    accelerator = Accelerator(mixed_precision="fp16")
    tokenizer = AutoTokenizer.from_pretrained("roberta-large")
    data = load_dataset("glue", "mnli")
    data = data.map(
        lambda row: tokenizer(row["premise"], max_length=128, truncation=True)
    )
    loader = DataLoader(data["train"], shuffle=True, batch_size=config["batch_size"])
    model = AutoModelForSequenceClassification.from_pretrained(
        "roberta-large", num_labels=3
    )
    optimizer = AdamW(params=model.parameters(), lr=config["lr"])
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(config["num_epochs"]):
        for batch in loader:
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()


def main():
    training_function({"lr": 2e-5, "num_epochs": 3, "batch_size": MAX_GPU_BATCH_SIZE})


if __name__ == "__main__":
    main()
