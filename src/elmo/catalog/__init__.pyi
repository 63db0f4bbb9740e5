from .cache import CachedModel as CachedModel
from .cache import ModelFiles as ModelFiles
from .cache import cache_folder as cache_folder
from .cache import list_cached as list_cached
from .cache import remove_cached as remove_cached
from .download import download_model as download_model
from .models import CatalogFile as CatalogFile
from .models import CatalogModel as CatalogModel
from .models import NetworkSizes as NetworkSizes
from .models import find_model as find_model
from .models import list_models as list_models

__all__ = [
    "CachedModel",
    "CatalogFile",
    "CatalogModel",
    "ModelFiles",
    "NetworkSizes",
    "cache_folder",
    "download_model",
    "find_model",
    "list_cached",
    "list_models",
    "remove_cached",
]
