"""Reading the runs of programs, with what they used."""

import sqlalchemy as sa

from gpuyard.ledger.queries.base import LedgerReader, Row

# So many of the newest attempts are looked at: older ones say little, and a ledger of
# years must not be read for one recommendation.
_LOOKED_AT = 20_000
_MOST_RUNS = 500


class ProgramRunQueries(LedgerReader):
    """Reads of the runs of programs."""

    def runs_with(self, texts: list[str]) -> list[Row]:
        """The newest attempts with GPUs that have ended and whose spec has one of these
        texts, newest first. Each has the `body` of its spec (JSON), and its `usage`
        (JSON).
        """
        wanted = " OR ".join(
            f"CAST(s.body AS TEXT) LIKE :text{number} ESCAPE '!'"
            for number in range(len(texts))
        )
        statement = sa.text(
            "SELECT a.job_id, a.owner, a.project, a.gpu, a.gpus, a.ran_s, a.reason,"
            " a.started_at, a.ended_at, a.resumed_from,"
            " CAST(a.usage AS TEXT) AS usage, CAST(s.body AS TEXT) AS body"
            " FROM (SELECT * FROM attempts WHERE ended_at IS NOT NULL"
            f" ORDER BY id DESC LIMIT {_LOOKED_AT}) AS a"
            " JOIN specs AS s ON s.job_id = a.job_id"
            f" WHERE a.gpus > 0 AND a.started_at IS NOT NULL AND ({wanted})"
            f" ORDER BY a.id DESC LIMIT {_MOST_RUNS}"
        )
        values = {f"text{n}": _pattern(text) for n, text in enumerate(texts)}
        return self._rows(statement.bindparams(**values))


def _pattern(text: str) -> str:
    for sign in "!%_":
        text = text.replace(sign, f"!{sign}")
    return f"%{text}%"
