from .client import AsyncClient as AsyncClient
from .client import Client as Client
from .options import ServeOptions as ServeOptions
from .options import default_models as default_models
from .server import serve as serve

__all__ = ["AsyncClient", "Client", "ServeOptions", "default_models", "serve"]
