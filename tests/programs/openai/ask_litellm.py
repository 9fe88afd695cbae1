"""litellm, which takes any server for OpenAI's that its environment names."""

import litellm
from asked import MESSAGES, REFUSED, TOOL, error_of, tell

litellm.suppress_debug_info = True
answer = litellm.completion("openai/a", MESSAGES)
(call,) = (
    litellm.completion("openai/a", MESSAGES, tools=[TOOL]).choices[0].message.tool_calls
)
stream = litellm.completion("openai/a", MESSAGES, stream=True)
completion = litellm.text_completion(model="text-completion-openai/a", prompt="hello")
tell(
    chat=answer.choices[0].message.content,
    tokens=answer.usage.total_tokens,
    stream=[chunk.choices[0].delta.content for chunk in stream],
    completion=completion.choices[0].text,
    embedding=litellm.embedding("openai/a", ["hello"]).data[0]["embedding"],
    tool=[call.function.name, call.function.arguments],
    no_model=error_of(lambda: litellm.completion("openai/none", MESSAGES)),
    refused=error_of(lambda: litellm.completion("openai/a", REFUSED)),
    stranger=error_of(
        lambda: litellm.completion("openai/a", MESSAGES, api_key="wrong")
    ),
)
