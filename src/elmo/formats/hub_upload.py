"""Upload a model to the Hugging Face Hub in elmo's native format, with a model card.

The card has the metadata by which the Hub finds models: library, language, license and scores (``model-index``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.errors import ConfigError, OutputError
from elmo.formats import native
from elmo.formats.hub import split_id
from elmo.formats.pretrained import Pretrained
from elmo.storage.atomic import temporary_folder
from elmo.storage.files import format_error, format_path, read_text

if TYPE_CHECKING:
    from elmo.storage.tensors import Dtype

_CARD = "README.md"
_MAX_CARD_BYTES = 1 << 20


@dataclass(frozen=True)
class CardScore:
    """A score for the model card.

    Args:
        metric: Name of the metric, such as "accuracy".
        value: The score.
        dataset: Name of the data set, with its split, such as "WiC dev".
        task: Name of the task.
    """

    metric: str
    value: float
    dataset: str
    task: str = "feature-extraction"


@dataclass(frozen=True)
class HubUpload:
    """Options of an upload.

    Args:
        revision: An existing branch to upload to. Default: the main branch.
        private: Create a private repository; no effect if the repository exists. Default: the setting of the owner.
        message: Commit message.
        token: Access token. Default: the token that huggingface_hub has stored.
        dtype: Data type of the stored weights.
        language: Language code or codes for the model card, such as "en".
        license: License for the model card, such as "cc-by-sa-4.0".
        scores: Scores for the model card; the held-out perplexity of a model trained with elmo is added.
        card: A file with your own model card, which is uploaded unchanged.
    """

    revision: str | None = None
    private: bool | None = None
    message: str = "Upload an ELMo model"
    token: str | None = None
    dtype: Dtype = "float32"
    language: str | Sequence[str] | None = None
    license: str | None = None
    scores: Sequence[CardScore] = ()
    card: str | Path | None = None


def upload(model: Pretrained, repo_id: str, options: HubUpload) -> str:
    """Upload a model and return the address of the commit."""
    from huggingface_hub import HfApi

    from elmo import __version__

    if split_id(repo_id) is None or "@" in repo_id:
        raise ConfigError(f"repo_id must be a Hub id such as org/name; found {repo_id!r:.80}")
    card = None if options.card is None else read_text(Path(options.card), _MAX_CARD_BYTES)
    with temporary_folder("elmo-hub-", subject=f"upload to {repo_id}") as temporary:
        folder = temporary / "model"
        native.write(model, folder, dtype=options.dtype)
        text = _extend_card(folder / _CARD, model, options, repo_id) if card is None else card
        (folder / _CARD).write_text(text, encoding="utf-8", newline="\n")
        api = HfApi(token=options.token, library_name="pyelmo", library_version=__version__)
        try:
            api.create_repo(repo_id, private=options.private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo_id, folder_path=folder, commit_message=options.message, revision=options.revision
            )
        except Exception as error:  # the HTTP library of huggingface_hub differs between versions, and so do its errors
            reason = format_error(error.__cause__ or error)[:300]
            raise OutputError(f"cannot upload to {format_path(repo_id)}: {reason}") from error
    return str(commit.commit_url)


def _extend_card(path: Path, model: Pretrained, options: HubUpload, repo_id: str) -> str:
    """Return the card of the native format with the Hub id, the metadata and the scores of an upload."""
    from huggingface_hub import EvalResult, ModelCard

    card = ModelCard(path.read_text(encoding="utf-8"))
    data: Any = card.data
    scores = [*_training_scores(model), *options.scores]
    if options.language is not None:
        data.language = options.language if isinstance(options.language, str) else list(options.language)
    if options.license is not None:
        data.license = options.license
    if scores:
        data.model_name = repo_id.partition("/")[2]
        data.eval_results = [
            EvalResult(
                task_type=score.task, dataset_type=_slug(score.dataset), dataset_name=score.dataset,
                metric_type=_slug(score.metric), metric_name=score.metric, metric_value=score.value,
            )
            for score in scores
        ]  # fmt: skip
    body = card.text.replace('"path/to/this/folder")  # or its Hub id', f'"{repo_id}")').rstrip()
    if scores:
        rows = [f"| {score.dataset} | {score.metric} | {score.value:g} |" for score in scores]
        body += "\n".join(["\n\n## Scores\n", "| data | metric | score |", "|---|---|---|", *rows])
    return f"---\n{data.to_yaml()}\n---\n{body}\n"


def _training_scores(model: Pretrained) -> list[CardScore]:
    training = model.metadata.get("training")
    perplexity = training.get("heldout_perplexity") if isinstance(training, dict) else None
    if not isinstance(perplexity, float):
        return []
    return [CardScore("perplexity", round(perplexity, 2), "held-out training text", task="text-generation")]


def _slug(text: str) -> str:
    """Return a name in the form of identifiers on the Hub."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())[:80] or "other"
