import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import T5ForConditionalGeneration, T5Tokenizer


def fsdp_main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    tokenizer = T5Tokenizer.from_pretrained("t5-3b")
    model = T5ForConditionalGeneration.from_pretrained("t5-3b")
    model = FSDP(model, device_id=torch.cuda.current_device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = torch.utils.data.DataLoader(load(tokenizer, max_length=512), batch_size=4)
    for epoch in range(2):
        for batch in loader:
            model(**batch)["loss"].backward()
            optimizer.step()


if __name__ == "__main__":
    fsdp_main()
