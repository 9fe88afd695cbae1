"""A Hugging Face Trainer as people write it; it knows nothing of gpuyard."""

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from data import Numbers

config = LlamaConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=8,
    num_train_epochs=2,
    learning_rate=1e-3,
    logging_steps=5,
    eval_strategy="epoch",
    save_steps=40,
    save_total_limit=2,
    report_to=[],
    use_cpu=True,
)
Trainer(
    LlamaForCausalLM(config),
    arguments,
    train_dataset=Numbers(400),
    eval_dataset=Numbers(80),
).train()
