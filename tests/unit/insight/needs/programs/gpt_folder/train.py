import os
from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from model import GPT, GPTConfig

init_from = "scratch"
batch_size = 12
block_size = 1024
gradient_accumulation_steps = 40
max_iters = 600000
n_layer = 12
n_head = 12
n_embd = 768
dtype = "bfloat16"
device = "cuda"
exec(open("configurator.py").read())

ddp = int(os.environ.get("RANK", -1)) != -1
dtype_of = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
ctx = (
    nullcontext()
    if device == "cpu"
    else torch.autocast(device_type="cuda", dtype=dtype_of)
)

meta_vocab_size = None
if os.path.exists("meta.pkl"):
    meta_vocab_size = load_meta()["vocab_size"]
model_args = dict(n_layer=n_layer, n_head=n_head, n_embd=n_embd, block_size=block_size)
if init_from == "scratch":
    model_args["vocab_size"] = meta_vocab_size if meta_vocab_size is not None else 50304
    model = GPT(GPTConfig(**model_args))
elif init_from == "resume":
    checkpoint = torch.load("ckpt.pt")
    model = GPT(GPTConfig(**checkpoint["model_args"]))
model.to(device)
optimizer = model.configure_optimizers(6e-4)
model = torch.compile(model)
if ddp:
    model = DDP(model)
iter_num = 0
while True:
    for micro_step in range(gradient_accumulation_steps):
        with ctx:
            logits, loss = model(*get_batch("train"))
        loss.backward()
    optimizer.step()
    iter_num += 1
    if iter_num > max_iters:
        break
