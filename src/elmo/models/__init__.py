"""The bundled models: ``en`` and ``zh``, each trained by a command in ``recipes``.

Each folder is in elmo's own format, with a model card: data, licenses, recipe, scores, limits.
``elmo.formats`` finds them by name.
"""
