# pyright: basic, reportMissingImports=false
"""One micro-batch on its way through the pipeline."""

from torch import Tensor

from .choosing import Chooser
from .links import Flight, Links
from .sequences import Sequences
from .stage import Stage


class Lane:
    """Takes sequences through this rank's stage, step by step.

    What is known to come is expected at once, so that it travels while another lane is computed: tokens as soon as the
    hidden states left, hidden states as soon as somebody goes on."""

    def __init__(self, tag: int, sequences: Sequences, stage: Stage, chooser: Chooser, links: Links) -> None:
        self.sequences = sequences
        self._tag, self._stage, self._chooser, self._links = tag, stage, chooser, links
        self._mesh = links.mesh
        self._hidden: Flight | None = None
        self._tokens: Flight | None = None
        self._sent: Flight | None = None
        self._expect_hidden()

    def advance(self) -> None:
        """One step of this stage, unless nobody goes on."""
        self._accept()
        if self.sequences.done:
            return
        rows = self._stage.embed(self.sequences.ids) if self._hidden is None else self._hidden.land()
        rows = self._stage.forward(rows, self.sequences)
        if self._mesh.is_last:
            self._choose(rows)
        else:
            self._land_sent()
            self._sent = self._links.send_hidden(rows, self._tag)
            self._tokens = self._links.expect_tokens(self.sequences.ids.new_empty(len(self.sequences.ids)), self._tag)

    def finish(self) -> None:
        """Take what is still on its way."""
        self._accept()
        self._land_sent()

    def _choose(self, rows: Tensor) -> None:
        """The next tokens, told to the other stages, which learn from them too who goes on."""
        sequences = self.sequences
        logits = self._stage.logits(rows, len(sequences.answers))
        prompt_ids = [answer.prompt.prompt_id for answer in sequences.answers]
        tokens = self._chooser.choose(logits, prompt_ids, sequences.step)
        if self._mesh.pp_size > 1:
            self._land_sent()
            self._sent = self._links.send_tokens(tokens, self._tag)
        sequences.accept(tokens)
        self._expect_hidden()

    def _accept(self) -> None:
        if self._tokens is not None:
            tokens, self._tokens = self._tokens.land(), None
            self.sequences.accept(tokens)
            self._expect_hidden()

    def _expect_hidden(self) -> None:
        if not self._mesh.is_first and not self.sequences.done:
            self._hidden = self._links.expect_hidden(self._stage.empty_rows(self.sequences.ids), self._tag)

    def _land_sent(self) -> None:
        if self._sent is not None:
            self._sent.land()
            self._sent = None
