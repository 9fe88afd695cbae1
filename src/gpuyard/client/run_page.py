"""The report of a run as a page of HTML that one can send: what it ran, with what, its
result, its cost, its files and its curves. It needs no other file.
"""

from collections.abc import Mapping, Sequence
from html import escape

from gpuyard.client.curves import Curve, parts_of, whole_page

_LEFT = (
    "<style>.left td{text-align:left;overflow-wrap:anywhere}"
    "pre{overflow-x:auto}</style>"
)


def run_page(
    title: str,
    fields: Mapping[str, str],
    texts: Mapping[str, str],
    files: Sequence[tuple[str, str, str]],
    metrics: Mapping[str, Sequence[Curve]],
) -> str:
    """A page with the `fields` by name, the curves of each metric, the `files` (path,
    size and SHA-256), and long `texts` by title. All are plain text; what is empty is
    left out.
    """
    parts = [_table(fields), parts_of(metrics), _files(files)]
    parts += [_text(name, text) for name, text in texts.items()]
    return whole_page(title, "".join(parts))


def _table(fields: Mapping[str, str]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>"
        for name, value in fields.items()
        if value
    )
    return f'{_LEFT}<table class="left">{rows}</table>\n'


def _files(files: Sequence[tuple[str, str, str]]) -> str:
    if not files:
        return ""
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(value)}</td>' for value in file)}</tr>"
        for file in files
    )
    head = "<tr><th>File</th><th>Size</th><th>SHA-256</th></tr>"
    return f"<h2>Artifacts</h2><table>{head}{rows}</table>\n"


def _text(name: str, text: str) -> str:
    return f"<h2>{escape(name)}</h2><pre>{escape(text)}</pre>\n" if text else ""
