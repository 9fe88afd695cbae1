import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained(
    "mistralai/Mistral-7B-v0.1", torch_dtype=torch.bfloat16
)
dataset = load_dataset("HuggingFaceH4/no_robots", split="train")
config = SFTConfig(
    output_dir="out",
    max_seq_length=1024,
    per_device_train_batch_size=1,
    gradient_checkpointing=True,
    num_train_epochs=1,
)
trainer = SFTTrainer(model=model, args=config, train_dataset=dataset)
trainer.train()
