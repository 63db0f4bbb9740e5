"""The name of a size in, the shape of a model out; and changes to it, for those who want another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig, WordConfig
from elmo.errors import ConfigError, raise_all

_FILTERS = CharCnnConfig.filters
PRESETS: dict[str, BiLmConfig] = {
    "tiny": BiLmConfig(CharCnnConfig(filters=_FILTERS[:3]), None, LstmConfig(cell_width=256, state_width=64)),
    "mini": BiLmConfig(
        CharCnnConfig(filters=_FILTERS[:5]), None, LstmConfig(cell_width=512, state_width=128)
    ),
    "small": BiLmConfig(CharCnnConfig(), None, LstmConfig(cell_width=1024, state_width=128)),
    "medium": BiLmConfig(CharCnnConfig(), None, LstmConfig(cell_width=2048, state_width=256)),
    "original": BiLmConfig(CharCnnConfig(n_highway=2), None, LstmConfig(cell_width=4096, state_width=512)),
}
# Up to how many tokens of text each is worth its time; a larger one would mostly learn the text by heart.
_UP_TO_TOKENS = {"tiny": 1_000_000, "mini": 10_000_000, "small": 100_000_000, "medium": 400_000_000}
Reads = Literal["characters", "words", "both"]


@dataclass(frozen=True)
class Shape:
    """A preset, and what of it should be otherwise; what is None stays."""

    preset: str | BiLmConfig | None = None  # None: by the size of the corpus
    reads: Reads | None = None
    n_layers: int | None = None
    cell_width: int | None = None
    state_width: int | None = None
    has_skip: bool | None = None

    def __post_init__(self) -> None:
        problems = []
        if isinstance(self.preset, str) and self.preset not in PRESETS:
            problems.append(
                f"preset must be one of {', '.join(PRESETS)} or a BiLmConfig, not {self.preset!r:.40}"
            )
        if self.reads is not None and self.reads not in get_args(Reads):
            problems.append(f"reads must be one of {', '.join(get_args(Reads))}, not {self.reads!r:.40}")
        raise_all(problems, subject="shape", kind=ConfigError)

    @property
    def reads_words_only(self) -> bool:
        """Whether no characters are read."""
        if self.reads is not None:
            return self.reads == "words"
        return isinstance(self.preset, BiLmConfig) and self.preset.chars is None

    def config(self, *, n_tokens: int, n_vocab: int) -> BiLmConfig:
        """The model's shape for a corpus of so many tokens and words to predict."""
        preset = preset_for(n_tokens) if self.preset is None else self.preset
        base = PRESETS[preset] if isinstance(preset, str) else preset
        changes = {
            name: value
            for name in ("n_layers", "cell_width", "state_width", "has_skip")
            if (value := getattr(self, name)) is not None
        }
        lstm = replace(base.lstm, **changes)
        if self.reads is None:
            words = base.words and replace(base.words, n_words=n_vocab)
            return replace(base, lstm=lstm, words=words)
        has_chars = self.reads != "words"
        return BiLmConfig(
            chars=(base.chars or CharCnnConfig()) if has_chars else None,
            words=None if self.reads == "characters" else WordConfig(n_vocab, lstm.state_width),
            lstm=lstm,
            alphabet="bytes" if has_chars else None,
        )


def preset_for(n_tokens: int) -> str:
    """The largest preset that a text of so many tokens can feed."""
    return next((name for name, most in _UP_TO_TOKENS.items() if n_tokens <= most), "original")
