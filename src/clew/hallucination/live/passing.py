"""The decoder that passes given answers through a model, compared with single passes before it is
first used."""

from collections.abc import Sequence

from clew.base.progress import Event, Note, Reporter, log_event
from clew.hallucination.capture.check import settle_decoder
from clew.hallucination.capture.decode import Decoder
from clew.hallucination.capture.dialogue import AnswerEnd, shared_prefix
from clew.hallucination.capture.models import LoadedModel, end_tokens, sliding_window
from clew.hallucination.capture.observe import ModelObserver
from clew.hallucination.detectors import Detector
from clew.hallucination.live.assessing import read_generation

_CHECK_COLUMNS = frozenset(("last_hidden", "attention_log_diagonal"))
_CHECK_TOKENS = 2
_LONGEST_CHECKED = 256


class GivenPasses:
    """One decoder for all scorers of a session. Call its methods only while nothing else uses the
    model. `same_length` says, once settled, whether only answers of equal length may be passed
    together."""

    def __init__(
        self, loaded: LoadedModel, detector: Detector, reporter: Reporter = log_event
    ) -> None:
        self.loaded, self.detector, self._reporter = loaded, detector, reporter
        self.generation = read_generation(detector)
        self.draws = "samples" in detector.fields and self.generation.draws > 0
        self.same_length = False
        self._window = sliding_window(loaded.model)
        self._decoder: Decoder | None = None

    def settle(self, prompt: Sequence[int]) -> None:
        """Make the decoder, and compare its batches with single passes over parts of a prompt."""
        if self._decoder is not None:
            return
        prompt = prompt[:_LONGEST_CHECKED]
        parts = [prompt[: max(1, len(prompt) * part // 3)] for part in (1, 2, 3)]
        events: list[Event] = []
        name = self.loaded.name or "the model"
        decoder, self.same_length = settle_decoder(
            lambda share: self._make(parts if share and self._window is None else []),
            parts,
            events.append,
            name=name,
        )
        for event in events if self.same_length else ():
            if isinstance(event, Note):
                self._reporter(event)
        self._decoder = decoder

    def shared_prefix(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
        """The tokens that need to be passed only once for these prompts and answers."""
        longest = max(len(prompt) + len(answer) for prompt, answer in sequences)
        # Padding after a shared prefix would shift what a sliding window sees.
        if self.same_length or (self._window is not None and longest > self._window):
            return []
        return shared_prefix([prompt for prompt, _ in sequences])

    def decoder(self, prefix: list[int], columns: frozenset[str]) -> Decoder:
        """The decoder for prompts that start with the prefix, which records these columns."""
        decoder = self._decoder
        assert decoder is not None
        if decoder.columns != columns or decoder.batch_model.prefix.tokens != prefix:
            decoder.columns = columns
            decoder.share_prefix(prefix)
        return decoder

    def _make(self, prompts: Sequence[Sequence[int]]) -> Decoder:
        model, tokenizer = self.loaded
        ends = end_tokens(model, tokenizer)
        return Decoder(
            model=model,
            observer=ModelObserver(model),
            shape=self.detector.shape,
            basis=self.detector.basis,
            answer_end=AnswerEnd(tokenizer, self.generation.cut, ends),
            max_new_tokens=self.generation.max_new_tokens if self.draws else _CHECK_TOKENS,
            prefix=shared_prefix(prompts),
            columns=_CHECK_COLUMNS,
        )
