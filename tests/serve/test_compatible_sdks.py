"""The official OpenAI SDK for Python, unmodified, against ``/v1/embeddings``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elmo import Elmo
from tests.serve.conftest import RunningServer

pytestmark = pytest.mark.slow

TEXTS = ["I sat by the bank of the river.", "She took the money to the bank.", "苹果 😀 and naïve café"]


@pytest.fixture(scope="module")
def openai() -> Any:
    return pytest.importorskip("openai", reason="needs the package openai")


@pytest.fixture
def client(openai: Any, server: RunningServer) -> Any:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="not needed", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_embeddings_are_the_sentence_vectors_of_the_library(client: Any, options: dict[str, str]) -> None:
    reply = client.embeddings.create(model="en", input=TEXTS, **options)
    found = [item.embedding for item in reply.data]
    if options.get("encoding_format") == "base64":  # asked for by the caller, so the SDK does not decode it
        import base64

        found = [np.frombuffer(base64.b64decode(text), "<f4") for text in found]
    encodings = Elmo.from_pretrained("en").encode(TEXTS)
    wanted = np.stack([np.asarray(encoding.sentence()) for encoding in encodings])
    assert np.abs(np.array(found) - wanted).max() <= 1e-6
    assert [item.index for item in reply.data] == [0, 1, 2]
    assert reply.usage.total_tokens == sum(map(len, encodings))


def test_one_text_and_2048_texts_are_accepted(client: Any) -> None:
    one = client.embeddings.create(model="en", input=TEXTS[0]).data[0].embedding
    many = client.embeddings.create(model="en", input=[TEXTS[0]] * 2048).data
    assert len(many) == 2048
    assert many[2047].embedding == one


def test_models_are_listed(client: Any) -> None:
    assert "en" in [model.id for model in client.models.list().data]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": "nothing", "input": "a"}, "NotFoundError"),
        ({"model": "en", "input": [[1, 2]]}, "BadRequestError"),
        ({"model": "en", "input": "a", "dimensions": 7}, "BadRequestError"),
        ({"model": "en", "input": ["a"] * 2049}, "APIStatusError"),
    ],
)
def test_errors_become_the_exceptions_of_the_sdk(openai: Any, client: Any, fields: dict[str, Any], error: str) -> None:
    with pytest.raises(getattr(openai, error)):
        client.embeddings.create(**fields)
