"""The HTTP service: words in context for programs in any language, and the page in a browser.

Files, in reading order:

- ``options.py``: ``ServeOptions``, the address, the limits and the access rules.
- ``server.py``: ``serve``, which runs one or several workers.
- ``worker.py``: one process: event loop, signals, graceful shutdown.
- ``connection.py``: one HTTP connection: parses requests, writes replies.
- ``app.py``: ``App``: access rules, limits and routes.
- ``schemas.py``: what a request may contain.
- ``scheduler.py``: the queue, batches and admission.
- ``service.py``: the loaded models and indexes, and the answers to requests.
- ``replies.py``: vectors and offsets as JSON, base64 or NumPy archives.
- ``native.py``: routes for sentences and for the usages of an index.
- ``compatible.py``: routes of OpenAI and text-embeddings-inference.
- ``explore.py``: routes of the explorer, and the files of its page.
- ``openapi.py``: the OpenAPI document and the page that shows it.
- ``metrics.py``: metrics for Prometheus.
- ``export.py``: ``export_site``, the explorer as a static site; ``export_text.py`` writes its tokenizers.
- ``client.py``: ``Client`` and ``AsyncClient``.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
