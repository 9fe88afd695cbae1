import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from transformers import Trainer, TrainingArguments

base = "meta-llama/Llama-2-7b-hf"
bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained(
    base, quantization_config=bnb, device_map="auto"
)
model = prepare_model_for_kbit_training(model)
config = LoraConfig(
    r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
)
model = get_peft_model(model, config)
tokenizer = AutoTokenizer.from_pretrained(base)
data = load_dataset("tatsu-lab/alpaca", split="train")
data = data.map(lambda row: tokenizer(row["text"], truncation=True, max_length=512))
args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    num_train_epochs=1,
    gradient_checkpointing=True,
    optim="paged_adamw_8bit",
    bf16=True,
)
Trainer(model=model, args=args, train_dataset=data).train()
