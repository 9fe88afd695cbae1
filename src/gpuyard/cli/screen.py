"""The screen of `gpuyard top`, in Textual. It asks once a second, and acts on the GPU under the cursor."""

from collections.abc import Callable
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from gpuyard.cli.dashboard import COLUMNS, SORTS, Row, Seen, foot, rows
from gpuyard.domain.errors import GpuyardError

_EVERY_S = 1.0
_STYLES = {
    "idle": "dim", "booting_llm": "cyan", "llm_ready": "green", "llm_busy": "bold green", "script_busy": "yellow",
    "unloading": "cyan", "cooling": "magenta", "draining": "magenta", "offline": "bold red", "quarantined": "bold red",
}  # fmt: skip


class Top(App[None]):
    """`look()` gives what there is to see; `act(action, target)` does something and says what. Both may wait."""

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
        Binding("s", "sort", "sort"),
        Binding("slash", "filter", "filter"),
        Binding("d", "ask('drain')", "drain/undrain"),
        Binding("u", "ask('unload')", "unload"),
        Binding("c", "ask('cancel')", "cancel"),
        Binding("escape", "forget", "forget", show=False),
    ]

    def __init__(self, look: Callable[[], Seen], act: Callable[[str, str], str]) -> None:
        super().__init__()
        self._look, self._act = look, act
        self._seen: Seen | None = None
        self._rows: list[Row] = []
        self._sort, self._only = SORTS[0], ""
        self._asked: tuple[str, str] | None = None

    def compose(self) -> ComposeResult:
        """Head, table, what waits, a line for what is asked."""
        yield Static("GPUYARD", id="head")
        table = DataTable[Text](cursor_type="row", zebra_stripes=True)
        table.add_columns(*COLUMNS)
        yield table
        yield Static("", id="foot")
        yield Static("", id="note")
        yield Input(placeholder="only GPUs with these words", id="only")
        yield Footer()

    def on_mount(self) -> None:
        """Look at once and then every second."""
        self.query_one(DataTable).focus()
        self.set_interval(_EVERY_S, self.look)
        self.look()

    def look(self) -> None:
        """Ask in a thread; an answer that comes late counts no more."""
        self.run_worker(self._ask_server, thread=True, exclusive=True, group="look")

    def _ask_server(self) -> None:
        try:
            seen = self._look()
        except GpuyardError as error:
            self.call_from_thread(self.say, str(error))
            return
        self.call_from_thread(self.show, seen)

    def say(self, text: str) -> None:
        """A line for the person."""
        self.query_one("#note", Static).update(text)

    def show(self, seen: Seen) -> None:
        """Draw what was seen; the cursor stays on its GPU."""
        table, chosen = self.query_one(DataTable[Text]), self._chosen()
        self._seen, self._rows = seen, rows(seen, sort=self._sort, only=self._only)
        table.clear()
        for row in self._rows:
            style = _STYLES.get(row.state, "")
            table.add_row(*(Text(cell, style=style) for cell in row.cells), key=row.uuid)
        if chosen and chosen.uuid in (uuids := [row.uuid for row in self._rows]):
            table.move_cursor(row=uuids.index(chosen.uuid))
        words = f" · by {self._sort}" + (f" · only {self._only!r}" if self._only else "")
        now = datetime.fromtimestamp(seen.at).astimezone()
        self.query_one("#head", Static).update(f"GPUYARD  {now:%Y-%m-%d %H:%M:%S}{words}")
        self.query_one("#foot", Static).update("\n".join(foot(seen)))

    def _chosen(self) -> Row | None:
        at = self.query_one(DataTable[Text]).cursor_row
        return self._rows[at] if 0 <= at < len(self._rows) else None

    def _again(self) -> None:
        if self._seen:
            self.show(self._seen)

    # --- keys ---

    def action_sort(self) -> None:
        """By the next column."""
        self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        self._again()

    def action_filter(self) -> None:
        """Ask for words."""
        only = self.query_one("#only", Input)
        only.display = True
        only.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Only rows with these words."""
        self._only, event.input.display = event.value.strip(), False
        self.query_one(DataTable).focus()
        self._again()

    def action_ask(self, action: str) -> None:
        """The same key twice does it; once says what it would do."""
        row = self._chosen()
        if row is None:
            return
        if action == "drain" and row.state == "draining":
            action = "undrain"
        target = {"unload": row.model, "cancel": row.job_id}.get(action, row.uuid)
        if target is None:
            self.say(f"nothing to {action} on GPU {row.cells[0]}")
        elif self._asked != (action, target):
            self._asked = (action, target)
            key = {"undrain": "d"}.get(action, action[0])
            self.say(f"press {key} again to {action} {target} (GPU {row.cells[0]}); escape forgets it")
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
        """Nothing was asked."""
        self._asked = None
        self.say("")
        only = self.query_one("#only", Input)
        only.display = False
        self.query_one(DataTable).focus()
