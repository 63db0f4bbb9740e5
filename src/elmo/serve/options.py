"""``ServeOptions``: the address, the limits and the access rules of the HTTP service."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from elmo.errors import ConfigError

KEY_VARIABLE = "ELMO_API_KEY"
_MAX_KEY_FILE_BYTES = 1 << 16
_MIN_KEY_CHARACTERS = 16


@dataclass(frozen=True)
class ServeOptions:
    """Options of the HTTP service.

    Attributes:
        models: Models to serve, as in ``Elmo.from_pretrained``. The first is the default model of requests.
        indexes: Folders written by ``elmo index``.
        corpora: Names of periods and their text files, in order of time, whose words are compared.
        host: Address to listen on. An address other than loopback requires API keys.
        port: Port to listen on; 0 chooses a free port.
        workers: Number of processes. Each loads the models and uses its share of the CPU cores.
        dtype: Precision of the networks, as in ``Elmo.from_pretrained``.
        api_key_file: File with one API key per line. Keys can also be set in the environment variable ELMO_API_KEY,
            separated by commas.
        allow_anonymous: Allow requests without an API key on an address other than loopback.
        allowed_hosts: Further host names that requests may use in their Host header.
        cors_origins: Origins, such as https://example.org, whose web pages may use the service.
        max_body_mb: Largest request body, in megabytes.
        max_inputs: Largest number of inputs in a request.
        max_tokens: Largest number of tokens in a request.
        max_reply_mb: Largest reply, in megabytes.
        max_memory_mb: Memory for all requests and replies that are in progress, in megabytes.
        max_wait: Longest time that a request may wait in the queue, in seconds. A request that would wait longer is
            refused with status 429.
        timeout: Longest time for a request, in seconds; a client can ask for less with the header X-Timeout.
        access_log: Log one line per request.

    Example:
        >>> ServeOptions(models=("en",), port=0).is_loopback
        True
    """

    models: tuple[str, ...] = ("en",)
    indexes: tuple[Path, ...] = ()
    corpora: tuple[tuple[str, Path], ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    dtype: str = "float32"
    api_key_file: Path | None = None
    allow_anonymous: bool = False
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body_mb: float = 16
    max_inputs: int = 2048
    max_tokens: int = 100_000
    max_reply_mb: float = 256
    max_memory_mb: float = 1024
    max_wait: float = 0.8
    timeout: float = 60.0
    access_log: bool = True

    def __post_init__(self) -> None:
        if not self.models:
            raise ConfigError("models must name at least one model")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be in 0..65535; found {self.port}")
        for name in ("workers", "max_inputs", "max_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; found {getattr(self, name)}")
        for name in ("max_body_mb", "max_reply_mb", "max_memory_mb", "max_wait", "timeout"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be greater than 0; found {getattr(self, name)}")
        names = [name for name, _ in self.corpora]
        if len(set(names)) < len(names):
            raise ConfigError(f"the names of the periods must differ; found {', '.join(names):.80}")
        for origin in self.cors_origins:
            scheme, _, rest = origin.partition("://")
            if scheme not in ("http", "https") or not rest or "/" in rest or "*" in rest:
                raise ConfigError(f"cors_origins must be origins such as https://example.org; found {origin!r:.60}")

    def read_keys(self) -> tuple[bytes, ...]:
        """Return the API keys from the environment and the key file.

        Raises ``ConfigError`` if there are none and the address requires them.
        """
        keys = [key.strip() for key in os.environ.get(KEY_VARIABLE, "").split(",")]
        if self.api_key_file is not None:
            try:
                with self.api_key_file.open("rb") as file:
                    text = file.read(_MAX_KEY_FILE_BYTES + 1).decode()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"cannot read the API keys in {self.api_key_file}: {error}") from error
            if len(text) > _MAX_KEY_FILE_BYTES:
                raise ConfigError(
                    f"{self.api_key_file}: a file of API keys must have at most {_MAX_KEY_FILE_BYTES} bytes"
                )
            keys += [line.strip() for line in text.splitlines()]
        keys = [key for key in keys if key]
        if any(len(key) < _MIN_KEY_CHARACTERS or not key.isascii() for key in keys):
            raise ConfigError(f"an API key must have at least {_MIN_KEY_CHARACTERS} ASCII characters")
        if not keys and not self.is_loopback and not self.allow_anonymous:
            raise ConfigError(
                f"listening on {self.host} requires API keys; set {KEY_VARIABLE} or use --api-key-file, or use "
                "--allow-anonymous to let everyone in the network use the service"
            )
        return tuple(key.encode() for key in keys)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def default_models() -> tuple[str, ...]:
    """Return the bundled models whose tokenizers are installed.

    Example:
        >>> "en" in default_models()
        True
    """
    has_chinese = all(find_spec(name) is not None for name in ("jieba", "opencc"))
    return ("en", "zh") if has_chinese else ("en",)
