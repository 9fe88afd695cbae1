"""Messages in Slack's format, which Mattermost reads, too."""

from typing import Any

# Slack refuses a block of more than 3000 characters; escaped, a text is up to five
# times as long.
_LONGEST = 500
# After it, `@channel` is only a word. Nobody sees it.
_NO_SPACE = "\u200b"


def slack_message(text: str, kind: str, job_id: str | None) -> dict[str, Any]:
    """A message that says `text`, as text for lists and as blocks for the channel.

    Nothing in it is markup: what people have named, such as a job, is shown as they
    wrote it, and calls on nobody.
    """
    below = kind if job_id is None else f"{kind} · {job_id}"
    return {
        "text": _plain(text),
        "mrkdwn": False,
        "blocks": [
            {"type": "section", "text": _text_object(text)},
            {"type": "context", "elements": [_text_object(below)]},
        ],
    }


def _text_object(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": _plain(text), "emoji": False}


def _plain(text: str) -> str:
    """A text in which nothing is a mention, a link or the name of a person."""
    cut = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    escaped = cut.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("@", f"@{_NO_SPACE}")
