"""The catalogue of public data sets: their addresses, hashes, sizes and licences.

A catalogue is a TOML file with a table for each data set; gpuyard's own lies beside
this module.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpuyard.domain.dataset_names import check_dataset_name
from gpuyard.domain.errors import InvalidInputError, NotFoundError
from gpuyard.domain.validation import faults_of

_OWN = Path(__file__).with_suffix(".toml")
_SHA256 = r"^[0-9a-f]{64}$"


class CatalogueEntry(BaseModel):
    """A public data set. `size` is in bytes; what is not known for sure is None.

    `packaged` is the file in the package of gpuyard, compressed by gzip: it need not be
    fetched. Only gpuyard's own catalogue names one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str = ""
    url: str = Field(pattern=r"^https?://[^\s]+$")
    sha256: str | None = Field(default=None, pattern=_SHA256)
    size: int | None = Field(default=None, ge=0)
    license: str = "unknown"
    packaged: str | None = None

    @property
    def file(self) -> str:
        """The name of the file at its address."""
        last = self.url.partition("?")[0].rstrip("/").rpartition("/")[2]
        return re.sub(r"[^A-Za-z0-9._-]", "_", last).lstrip(".") or "data"


def read_catalogue(path: Path | None = None) -> dict[str, CatalogueEntry]:
    """The entries of a catalogue by name, of gpuyard's own without a `path`;
    InvalidInputError names the entry and the field.
    """
    place = path or _OWN
    try:
        tables: dict[str, Any] = tomllib.loads(place.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInputError.of(
            "--catalogue", f"{place} cannot be read: {error}", "name a TOML file"
        ) from None
    entries = {name: _entry(name, table) for name, table in tables.items()}
    for entry in entries.values():
        if path is not None and entry.packaged is not None:
            fault = "is only for data sets in the package of gpuyard"
            field = f"{entry.name}.packaged"
            raise InvalidInputError.of(field, fault, "leave it out")
    return entries


def entry_of(catalogue: dict[str, CatalogueEntry], name: str) -> CatalogueEntry:
    """The entry of this name; NotFoundError."""
    if name not in catalogue:
        raise NotFoundError(
            f"The catalogue has no {name}.",
            f"It has {', '.join(catalogue)}. To add data of your own, name its path.",
        )
    return catalogue[name]


def _entry(name: str, table: Any) -> CatalogueEntry:
    check_dataset_name(name)
    if not isinstance(table, dict):
        raise InvalidInputError.of(name, "is no table", f"write [{name}]")
    try:
        return CatalogueEntry.model_validate({"name": name, **table})
    except ValidationError as error:
        faults = faults_of(error, CatalogueEntry)
        named = [(f"{name}.{fault.field}", fault) for fault in faults]
        field, fault = named[0]
        raise InvalidInputError.of(field, fault.fault, fault.remedy) from None
