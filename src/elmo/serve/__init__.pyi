from .client import AsyncClient as AsyncClient
from .client import Client as Client
from .export import ExportedSite as ExportedSite
from .export import ExportOptions as ExportOptions
from .export import export_site as export_site
from .options import ServeOptions as ServeOptions
from .options import default_models as default_models
from .server import serve as serve

__all__ = [
    "AsyncClient",
    "Client",
    "ExportOptions",
    "ExportedSite",
    "ServeOptions",
    "default_models",
    "export_site",
    "serve",
]
