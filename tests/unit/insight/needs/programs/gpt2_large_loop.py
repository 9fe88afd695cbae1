import torch
from torch.utils.data import DataLoader
from transformers import GPT2LMHeadModel, GPT2TokenizerFast

tokenizer = GPT2TokenizerFast.from_pretrained("gpt2-large")
model = GPT2LMHeadModel.from_pretrained("gpt2-large").cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
model.gradient_checkpointing_enable()
lines = open("lines.txt").read().splitlines()
loader = DataLoader(lines, batch_size=1, shuffle=True)
for epoch in range(1):
    for text in loader:
        batch = tokenizer(
            text, truncation=True, max_length=256, return_tensors="pt"
        ).to("cuda")
        model(**batch, labels=batch["input_ids"]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
