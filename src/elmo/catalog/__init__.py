"""Find and download published models by name.

``list_models`` and ``find_model`` read the table of all published ELMo models, ``download_model`` fetches the files of
one of them, and ``list_cached`` and ``remove_cached`` manage the folder in which they are kept. ``elmo.formats.load``
reads a model by its name. Modules, in reading order:

- ``models``: the table ``models.jsonl`` as dataclasses, names and aliases, search by language and domain.
- ``cache``: the folder of downloaded files: complete and unfinished files, checksums, files added by hand.
- ``download``: fetch the files of a model from its addresses, one after the other.
- ``transfer``: fetch one file over HTTP: resume it, limit it, and detect servers that misbehave.
- ``languages``: the names of languages in English, in the language itself and in Chinese.

Servers are not trusted: a file has its final name only if it is complete and has the expected checksum, and the readers
of ``formats`` check its content.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
