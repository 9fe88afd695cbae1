"""The screen of `gpuyard top`, in Textual.

It asks the server once a second. Keys act on the GPU under the cursor.
"""

from collections.abc import Callable
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from gpuyard.cli.dashboard import COLUMNS, SORTS, GpuRow, Seen, foot, rows
from gpuyard.domain.errors import GpuyardError

_EVERY_S = 1.0
_STYLES = {
    "idle": "dim",
    "booting_llm": "cyan",
    "llm_ready": "green",
    "llm_busy": "bold green",
    "script_busy": "yellow",
    "unloading": "cyan",
    "cooling": "magenta",
    "draining": "magenta",
    "offline": "bold red",
    "quarantined": "bold red",
}


class Top(App[None]):
    """The application.

    `look()` returns what to show. `act(action, target)` does something and returns
    what it did as a sentence. Both may block; they run in threads.
    """

    CSS = """
    Screen { background: $background; }
    #head { text-style: bold; padding: 0 1; }
    DataTable { height: 1fr; }
    #foot { padding: 0 1; }
    #note { padding: 0 1; color: $warning; }
    #only { display: none; }
    """
    TITLE = "gpuyard"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
        Binding("s", "sort", "sort"),
        Binding("slash", "filter", "filter"),
        Binding("d", "ask('drain')", "drain/undrain"),
        Binding("u", "ask('unload')", "unload"),
        Binding("c", "ask('cancel')", "cancel"),
        Binding("escape", "forget", "forget", show=False),
    ]

    def __init__(
        self, look: Callable[[], Seen], act: Callable[[str, str], str]
    ) -> None:
        super().__init__()
        self._look = look
        self._act = act
        self._seen: Seen | None = None
        self._rows: list[GpuRow] = []
        self._sort = SORTS[0]
        self._only = ""
        self._asked: tuple[str, str] | None = None
        self._head = Static("GPUYARD", id="head")
        self._table = DataTable[Text](cursor_type="row", zebra_stripes=True)
        self._foot = Static("", id="foot")
        self._note = Static("", id="note")
        self._filter = Input(placeholder="only GPUs with these words", id="only")

    def compose(self) -> ComposeResult:
        """The heading, the table, what waits, a line for messages and the filter."""
        self._table.add_columns(*COLUMNS)
        yield self._head
        yield self._table
        yield self._foot
        yield self._note
        yield self._filter
        yield Footer()

    def on_mount(self) -> None:
        """Ask the server now and then every second."""
        self._table.focus()
        self.set_interval(_EVERY_S, self.look)
        self.look()

    def look(self) -> None:
        """Ask the server in a thread; a newer question replaces one in progress."""
        self.run_worker(self._ask_server, thread=True, exclusive=True, group="look")

    def _ask_server(self) -> None:
        try:
            seen = self._look()
        except GpuyardError as error:
            self.call_from_thread(self.say, str(error))
            return
        self.call_from_thread(self.show, seen)

    def say(self, text: str) -> None:
        """Show a message below the table."""
        if self._note.is_attached:
            self._note.update(text)

    def show(self, seen: Seen) -> None:
        """Draw what the server said; the cursor stays on its GPU."""
        if not self._table.is_attached:
            return  # an answer that arrives while the application closes
        chosen = self._chosen()
        self._seen = seen
        self._rows = rows(seen, sort=self._sort, only=self._only)
        self._table.clear()
        for row in self._rows:
            style = _STYLES.get(row.state, "")
            cells = [Text(cell, style=style) for cell in row.cells]
            self._table.add_row(*cells, key=row.uuid)
        uuids = [row.uuid for row in self._rows]
        if chosen and chosen.uuid in uuids:
            self._table.move_cursor(row=uuids.index(chosen.uuid))
        now = datetime.fromtimestamp(seen.at).astimezone()
        heading = f"GPUYARD  {now:%Y-%m-%d %H:%M:%S} · by {self._sort}"
        if self._only:
            heading += f" · only {self._only!r}"
        self._head.update(heading)
        self._foot.update("\n".join(foot(seen)))

    def _chosen(self) -> GpuRow | None:
        at = self._table.cursor_row
        return self._rows[at] if 0 <= at < len(self._rows) else None

    def _redraw(self) -> None:
        if self._seen:
            self.show(self._seen)

    # --- keys ---

    def action_sort(self) -> None:
        """Sort by the next column."""
        following = SORTS.index(self._sort) + 1
        self._sort = SORTS[following % len(SORTS)]
        self._redraw()

    def action_filter(self) -> None:
        """Ask for words that the rows to show must hold."""
        self._filter.display = True
        # Widget.focus() would wait for a later event: what is typed meanwhile would
        # act as keys of the table, and `q` would quit.
        self.screen.set_focus(self._filter)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Show only rows with the words entered."""
        self._only = event.value.strip()
        self._close_filter()
        self._redraw()

    def _close_filter(self) -> None:
        self._filter.display = False
        self.screen.set_focus(self._table)

    def action_ask(self, action: str) -> None:
        """Explain what the key would do; the same key pressed again does it."""
        row = self._chosen()
        if row is None:
            return
        if action == "drain" and row.state == "draining":
            action = "undrain"
        targets = {"unload": row.model, "cancel": row.job_id}
        is_gpu = row.uuid != row.job_id
        target = targets.get(action, row.uuid if is_gpu else None)
        place = f"GPU {row.cells[0]}" if is_gpu else row.cells[0]
        if target is None:
            self.say(f"nothing to {action} on {place}")
        elif self._asked != (action, target):
            self._asked = (action, target)
            key = "d" if action == "undrain" else action[0]
            self.say(
                f"press {key} again to {action} {target} ({place}); escape forgets it"
            )
        else:
            self._asked = None
            self.run_worker(lambda: self._do(action, target), thread=True, group="act")

    def _do(self, action: str, target: str) -> None:
        try:
            said = self._act(action, target)
        except GpuyardError as error:
            said = str(error)
        self.call_from_thread(self.say, said)

    def action_forget(self) -> None:
        """Forget the key that was pressed once, and close the filter."""
        self._asked = None
        self.say("")
        self._close_filter()
