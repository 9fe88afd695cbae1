"""The level of a line of output, as logging, loguru, absl, structlog, TensorFlow and
others write it.
"""

import re

_NAME = r"TRACE|DEBUG|INFO|SUCCESS|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SEVERE"
_LEVELS = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "success": "info",
    "notice": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "severe": "error",
    "critical": "critical",
    "fatal": "critical",
    "i": "info",
    "w": "warning",
    "e": "error",
    "f": "critical",
}
# Who says a line, where several processes write to one log: torchrun's rank, MPI, Ray.
RANK = re.compile(
    r"\[(?:rank|default)?\d{1,5}\]:\s?"
    r"|\[\d{1,5},\d{1,5}\]<std(?:err|out)>:\s?"
    r"|\(\w{1,40} pid=\d{1,8}(?:, ip=[\d.]{1,15})?\)\s?"
    r"|\d{1,5}:\s"
)
# What tqdm has drawn before something else was printed on the same line.
_BAR = re.compile(r"[^|]{0,200}\d%\|[^|]{0,300}\| ?\S{1,40} \[[^\]]{0,100}\]\s*")
_DATE = r"[\[(]?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d(?::\d\d)?"
_READ = 400  # characters of a line: levels stand at its beginning

_NAMED = re.compile(
    rf"(?P<begin>{_NAME})(?=\s{{0,9}}[:|\]]|\s{{1,9}}-)"
    rf"|\[\s?(?P<bracket>{_NAME})(?=[\s:|\]])"
    rf"|{_DATE}.{{0,120}}?[\s\[|:,-](?P<dated>{_NAME})(?=[\s\]|:,-]|$)"
    rf"|{_DATE}.{{0,20}}?\[(?P<lower>trace|debug|info|warning|error|critical)\s*\]"
    r"|\[?(?P<letter>[IWEF])\d{4,8} \d\d:\d\d:\d\d"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: (?P<tensorflow>[IWEF]) "
    r"|(?:[\w./-]{1,60}: )(?P<tool>error|warning|fatal)(?: \w{1,12})?:"
)
_FIELD = re.compile(
    r"""(?:"(?:level|levelname|severity|log_level)"\s?:\s?"|\blevel=)"""
    rf"(?P<name>{_NAME})\b",
    re.IGNORECASE,
)
_WARNING = re.compile(
    r"(?:\S.{0,200}:\d{1,7}: )?[\w.]{0,60}Warning: |.{0,120}\bNCCL WARN\b"
)
_ERROR = re.compile(
    r"(?:[A-Za-z_][\w.]{0,100})?(?:Error|Exception|Interrupt|SystemExit)(?::|$)"
    r"|Segmentation fault|Bus error|terminate called |Fatal Python error"
    r"|.{0,120}\bCUDA error\b"
)
# A line with a level has one of these; as an expression for bytes, without case.
CANDIDATES = (
    r"(?i:debug|info|warn|error|critical|fatal|trace|success|notice|severe|exception"
    r"|interrupt|systemexit|fault|terminate called)|[IWEF]\d{4}|: [IWEF] "
)
SEVERE_CANDIDATES = (
    r"(?i:error|critical|fatal|severe|exception|interrupt|systemexit|fault|traceback"
    r"|terminate called)|[EF]\d{4}|: [EF] "
)


def without_rank(line: str) -> tuple[str, str]:
    """The rank that a line begins with, which may be empty, and the rest."""
    rank = RANK.match(line)
    return (rank[0].strip(), line[rank.end() :]) if rank else ("", line)


def level_of(line: str) -> str | None:
    """One of `LEVELS` (domain/log_query.py), or None for a line that says none. Takes
    time that is linear in a constant: only the beginning of the line is read.
    """
    text = without_rank(line[:_READ])[1]
    if "%|" in text and (bar := _BAR.match(text)):
        text = text[bar.end() :]
    text = text.lstrip()
    if named := _NAMED.match(text):
        return _LEVELS[(named[named.lastgroup or 0]).lower()]
    if field := _FIELD.search(text):
        return _LEVELS[field["name"].lower()]
    if _ERROR.match(text):
        return "error"
    return "warning" if _WARNING.match(text) else None
