"""OpenAI's own client against a server: `python chat.py URL TOKEN MODEL` prints a whole
answer and a streamed one.
"""

import json
import sys

from openai import OpenAI

url, token, model = sys.argv[1:]
client = OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0, timeout=100)
asked = {
    "model": model,
    "messages": [{"role": "user", "content": "tell me"}],
    "max_tokens": 8,
    "temperature": 0.0,
}
whole = client.chat.completions.create(**asked)
parts = [
    chunk.choices[0].delta.content or ""
    for chunk in client.chat.completions.create(**asked, stream=True)
    if chunk.choices
]
sys.stdout.write(
    json.dumps(
        {
            "models": [m.id for m in client.models.list()],
            "whole": whole.choices[0].message.content,
            "parts": parts,
        }
    )
)
