"""A prompt as its model's tokens."""

from typing import Any


def token_ids(tokenizer: Any, prompt: str) -> list[int]:
    """As the one message of a chat where the model has a form for chats, else as it stands."""
    if getattr(tokenizer, "chat_template", None):
        chat = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        # The form brings its own special tokens.
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    return list(tokenizer(prompt)["input_ids"])
