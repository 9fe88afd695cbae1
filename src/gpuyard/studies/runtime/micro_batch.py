# pyright: basic, reportMissingImports=false
"""One micro-batch in the pipeline."""

from torch import Tensor

from .communicator import Communicator, PendingTransfer
from .pipeline_stage import PipelineStage
from .sampling import TokenSampler
from .sequences import Sequences


class MicroBatch:
    """Takes sequences through this rank's stage, step by step.

    Receives start early, so that data travels while another micro-batch is computed.
    The receive of tokens starts when the hidden states have been sent, and the receive
    of hidden states when the tokens show that a sequence goes on.
    """

    def __init__(
        self,
        tag: int,
        sequences: Sequences,
        stage: PipelineStage,
        sampler: TokenSampler,
        communicator: Communicator,
    ) -> None:
        self.sequences = sequences
        self._tag = tag
        self._stage = stage
        self._sampler = sampler
        self._communicator = communicator
        self._mesh = communicator.mesh
        self._hidden: PendingTransfer | None = None
        self._tokens: PendingTransfer | None = None
        self._sent: PendingTransfer | None = None
        self._expect_hidden()

    def advance(self) -> None:
        """Compute one step of this stage, unless all sequences are done."""
        self._accept()
        if self.sequences.done:
            return
        rows = (
            self._stage.embed(self.sequences.ids)
            if self._hidden is None
            else self._hidden.wait()
        )
        rows = self._stage.forward(rows, self.sequences)
        if self._mesh.is_last:
            self._choose(rows)
        else:
            self._wait_sent()
            self._sent = self._communicator.send_hidden(rows, self._tag)
            self._tokens = self._communicator.expect_tokens(
                self.sequences.ids.new_empty(len(self.sequences.ids)), self._tag
            )

    def finish(self) -> None:
        """Complete the transfers that are still under way."""
        self._accept()
        self._wait_sent()

    def _choose(self, rows: Tensor) -> None:
        """Choose the next tokens and send them to the other stages.

        The tokens also tell those stages which sequences go on.
        """
        sequences = self.sequences
        logits = self._stage.logits(rows, len(sequences.answers))
        prompt_ids = [answer.prompt.prompt_id for answer in sequences.answers]
        choice = self._sampler.choose(logits, prompt_ids, sequences.step)
        if self._mesh.pp_size > 1:
            self._wait_sent()
            self._sent = self._communicator.send_tokens(choice.tokens, self._tag)
        sequences.accept(choice.tokens, choice.confidence)
        self._expect_hidden()

    def _accept(self) -> None:
        if self._tokens is not None:
            tokens = self._tokens.wait()
            self._tokens = None
            self.sequences.accept(tokens)
            self._expect_hidden()

    def _expect_hidden(self) -> None:
        if not self._mesh.is_first and not self.sequences.done:
            self._hidden = self._communicator.expect_hidden(
                self._stage.empty_rows(self.sequences.ids), self._tag
            )

    def _wait_sent(self) -> None:
        if self._sent is not None:
            self._sent.wait()
            self._sent = None
