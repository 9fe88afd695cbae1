"""Leaves out what is of projects that do not exist for who asks."""

from collections.abc import Collection

import sqlalchemy as sa


def visible(
    project: sa.ColumnElement[str], hidden: Collection[str]
) -> list[sa.ColumnElement[bool]]:
    """The condition on the column of a project; none where nothing is hidden."""
    if not hidden:
        return []
    return [sa.or_(project.is_(None), project.not_in(sorted(hidden)))]
