"""What exists for who asks."""

from dataclasses import dataclass

NO_PROJECTS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Visibility:
    """What exists for who asks: all but the `hidden` projects. A name means first what
    is the `user`'s own (None: the owner of the instance). `of_all_users`: it sees what
    others do with their tokens, too.
    """

    user: str | None = None
    hidden: frozenset[str] = NO_PROJECTS
    of_all_users: bool = True

    def sees(self, project: str | None) -> bool:
        """Whether what is of this project exists."""
        return project not in self.hidden


EVERYTHING = Visibility()
