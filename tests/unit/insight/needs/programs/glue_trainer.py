from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
)

checkpoint = "bert-base-uncased"
raw = load_dataset("glue", "mrpc")
tokenizer = AutoTokenizer.from_pretrained(checkpoint)


def tokenize(example):
    return tokenizer(example["sentence1"], example["sentence2"], truncation=True)


tokenized = raw.map(tokenize, batched=True)
args = TrainingArguments("out", per_device_train_batch_size=16, num_train_epochs=3)
model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=2)
trainer = Trainer(model, args, train_dataset=tokenized["train"], tokenizer=tokenizer)
trainer.train()
