"""LangChain's clients for OpenAI, as its environment variables say."""

from asked import MESSAGES, REFUSED, TOOL, error_of, tell
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

chat = ChatOpenAI(model="a")
answer = chat.invoke(MESSAGES)
(call,) = chat.bind_tools([TOOL]).invoke(MESSAGES).tool_calls
# Without the check it needs no table of OpenAI's tokens, which it would download.
embeddings = OpenAIEmbeddings(model="a", check_embedding_ctx_length=False)
tell(
    chat=answer.content,
    tokens=answer.usage_metadata["total_tokens"],
    stream=[chunk.content for chunk in chat.stream(MESSAGES)],
    completion=OpenAI(model="a").invoke("hello"),
    embedding=embeddings.embed_query("hello"),
    tool=[call["name"], call["args"]],
    no_model=error_of(lambda: ChatOpenAI(model="none").invoke(MESSAGES)),
    refused=error_of(lambda: chat.invoke(REFUSED)),
    stranger=error_of(lambda: ChatOpenAI(model="a", api_key="wrong").invoke(MESSAGES)),
)
