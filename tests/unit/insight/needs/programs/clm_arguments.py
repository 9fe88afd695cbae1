from dataclasses import dataclass, field
from typing import Optional

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, Trainer
from transformers import TrainingArguments


@dataclass
class ModelArguments:
    model_name_or_path: Optional[str] = field(default="gpt2")


@dataclass
class DataTrainingArguments:
    dataset_name: Optional[str] = field(default="wikitext")
    dataset_config_name: Optional[str] = field(default="wikitext-2-raw-v1")
    block_size: int = field(default=1024)


def main():
    parser = HfArgumentParser(
        (ModelArguments, DataTrainingArguments, TrainingArguments)
    )
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
    raw = load_dataset(data_args.dataset_name, data_args.dataset_config_name)
    trainer = Trainer(model=model, args=training_args, train_dataset=raw["train"])
    trainer.train()


if __name__ == "__main__":
    main()
