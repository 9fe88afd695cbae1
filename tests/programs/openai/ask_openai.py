"""OpenAI's own client, as its environment variables say."""

from asked import MESSAGES, REFUSED, TOOL, error_of, tell
from openai import OpenAI

client = OpenAI()
chat = client.chat.completions
stranger = OpenAI(api_key="wrong")
answer = chat.create(model="a", messages=MESSAGES)
(call,) = (
    chat.create(model="a", messages=MESSAGES, tools=[TOOL])
    .choices[0]
    .message.tool_calls
)
stream = chat.create(model="a", messages=MESSAGES, stream=True)
tell(
    models=[model.id for model in client.models.list()],
    model=client.models.retrieve("a").id,
    chat=answer.choices[0].message.content,
    tokens=answer.usage.total_tokens,
    stream=[chunk.choices[0].delta.content for chunk in stream],
    completion=client.completions.create(model="a", prompt="hello").choices[0].text,
    embedding=client.embeddings.create(model="a", input="hello").data[0].embedding,
    tool=[call.function.name, call.function.arguments],
    no_model=error_of(lambda: chat.create(model="none", messages=MESSAGES)),
    refused=error_of(lambda: chat.create(model="a", messages=REFUSED)),
    no_room=error_of(
        lambda: client.with_options(max_retries=0).chat.completions.create(
            model="large", messages=MESSAGES
        )
    ),
    stranger=error_of(lambda: stranger.models.list()),
)
