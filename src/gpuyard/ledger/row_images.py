"""The journal's beginning: when events are pruned, an image of each row that they
changed takes their place.

An image may be newer than the events it replaces: to apply the kept events to it again
changes nothing, because they carry after-images too. So images can be written row by
row, at any time, and the journal stays exact in between.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gpuyard.domain.events import Change, Table
from gpuyard.ledger.apply import cursor
from gpuyard.ledger.side_tables import row_images
from gpuyard.ledger.statements import remove_image, upsert_image
from gpuyard.ledger.tables import STATE_TABLES, key_column

# Rows are short and alike, so each is packed with words that all of them contain. Never
# change this text: stored images could no longer be read.
_WORDS = (
    b'"score":"quarantined_until":"slot":"share":"gpu_class":"batch_id":"entry":'
    b'"boot_id":"seen_at":"compute_capability":"memory_mb":"sha256":"directory":'
    b'"kept":true,"path":"step":"size":"message":"signal":"resumed_from":'
    b'"preempted","job_failed","timed_out","cancelled","lost","model","script","llm",'
    b'"environment":{},"args":[],"labels":{},"shape":{"gpus":1,"nodes":1,"cpus":1.0,'
    b'"memory_gb":1.0,"gpu":null},"resources":{"gpus":0,"gpu_type":null},'
    b'"name":"kind":"command","project":"default","priority":0,"timeout_s":'
    b'"estimated_duration_s":"idempotency_key":"warnings":[],"tier":"GPU_SMALL",'
    b'"price_per_hour":"0","currency":"USD","basis":"list","cost":"0",'
    b'"usage":{"cpu_s":0.0,"max_rss_mb":},"limits":{"gpus":"environment","memory":'
    b'"cgroup"},"placements":[{"node_id":"node_0","gpu_uuids":[],"cpus":1.0,'
    b'"memory_gb":0.0,"offer":"","prefetched":false}],"provider":"local",'
    b'"provider_ref":"attempt_0","token":1,"epoch":1,"number":1,"attempt_id":"attempt_'
    b'0","preemptible":false,"depends_on":[],"retry_count":0,"failures":0,'
    b'"attempts":1,"cancel_requested":false,"not_before":0.0,"exit_code":0,'
    b'"reason":"created_at":1"started_at":1"ended_at":1"state":"ended","completed",'
    b'"job_id":"job_019"id":"'
)
_LEVEL = 6
_PAGE_ROWS = 500


def write_images(tx: sa.Connection, keys: Mapping[Table, Sequence[str]]) -> None:
    """Replace the images of these rows by what the tables hold now."""
    for name, wanted in keys.items():
        table = STATE_TABLES[name]
        column = key_column(table)
        chosen = sa.select(table).where(column.in_(wanted))
        found = tx.execute(chosen).mappings()
        rows = {row[column.name]: dict(row) for row in found}
        images = [(name.value, key, _pack(row)) for key, row in rows.items()]
        upsert_image(tx.dialect.name).run(cursor(tx), images)
        removed = [(name.value, key) for key in wanted if key not in rows]
        if removed:
            cursor(tx).executemany(remove_image(tx.dialect.name), removed)


def read_images(tx: sa.Connection) -> Iterator[Change]:
    """Every image, as a change that writes the whole row."""
    columns = row_images.c
    for name in STATE_TABLES:
        after = ""
        while True:
            page = tx.execute(
                sa.select(columns.key, columns.body)
                .where(columns.table == name.value, columns.key > after)
                .order_by(columns.key)
                .limit(_PAGE_ROWS)
            ).all()
            if not page:
                break
            for row in page:
                yield Change(name, row.key, _unpack(row.body))
            after = page[-1].key


def import_rows(
    tx: sa.Connection, name: Table, rows: Iterable[Mapping[str, Any]]
) -> None:
    """Write images of rows that another form of the journal's beginning held."""
    key = key_column(STATE_TABLES[name]).name
    images = ((name.value, row[key], _pack(row)) for row in rows)
    upsert_image(tx.dialect.name).run(cursor(tx), images)


def _pack(row: Mapping[str, Any]) -> bytes:
    """The row as compressed JSON; a column that it leaves out is NULL."""
    values = {name: value for name, value in row.items() if value is not None}
    packer = zlib.compressobj(_LEVEL, zdict=_WORDS)
    return packer.compress(msgspec.json.encode(values)) + packer.flush()


def _unpack(body: bytes) -> dict[str, Any]:
    unpacker = zlib.decompressobj(zdict=_WORDS)
    values: dict[str, Any] = msgspec.json.decode(unpacker.decompress(body))
    return values
