from datasets import load_dataset
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WhisperForConditionalGeneration,
    WhisperProcessor,
)

data = load_dataset(
    "mozilla-foundation/common_voice_11_0", "hi", split="train+validation"
)
processor = WhisperProcessor.from_pretrained("openai/whisper-small", language="Hindi")
model = WhisperForConditionalGeneration.from_pretrained("openai/whisper-small")
model.config.forced_decoder_ids = None
args = Seq2SeqTrainingArguments(
    output_dir="./whisper-small-hi",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=1e-5,
    max_steps=4000,
    gradient_checkpointing=True,
    fp16=True,
)
trainer = Seq2SeqTrainer(args=args, model=model, train_dataset=data)
trainer.train()
