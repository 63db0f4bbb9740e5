from .client import AsyncClient as AsyncClient
from .client import Client as Client
from .options import ServeOptions as ServeOptions
from .server import serve as serve

__all__ = ["AsyncClient", "Client", "ServeOptions", "serve"]
