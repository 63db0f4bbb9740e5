"""The alignment of a model: matrices that map its vectors to the coordinates of a model of another language.

Cosines between the vectors of both models are then meaningful (Schuster et al. 2019). The network, and so all
predictions, stay the same: the matrices are applied to the layers that ``Elmo.encode`` returns. ``elmo align`` computes
orthogonal matrices, which preserve all lengths and cosines between the vectors of the model itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elmo.config import BiLmConfig
from elmo.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Alignment:
    """Matrices that map the vectors of a model to the coordinates of another model, the target.

    Attributes:
        layers: One matrix per layer (layer, width, width); a vector x of layer k becomes ``layers[k] @ x``.
        sense: The matrix for the vectors of ``layers="sense"`` (width, width); None if there is none.
        targets: Fingerprints of the target, as ``elmo.formats.pretrained.fingerprint`` computes them.
    """

    layers: Tensor
    sense: Tensor | None
    targets: tuple[str, ...]

    def tensors(self) -> dict[str, Tensor]:
        """Return the matrices by name."""
        return {"layers": self.layers} | ({} if self.sense is None else {"sense": self.sense})

    def problems(self, config: BiLmConfig) -> list[str]:
        """List the matrices that do not fit a model with this config, or that are not finite."""
        problems = []
        for name, shape in alignment_shapes(config).items():
            tensor: Tensor | None = getattr(self, name)
            if tensor is None:
                continue
            if tuple(tensor.shape) != shape:
                problems.append(f"{name}: expected shape {shape}, found {tuple(tensor.shape)}")
            elif not tensor.isfinite().all():
                problems.append(f"{name} contains values that are not finite")
        return problems

    def map_layers(self, states: Tensor) -> Tensor:
        """Map the vectors of all layers (…, layer, time, width)."""
        return states @ self.layers.to(states.device, states.dtype).transpose(1, 2)

    def map_sense(self, vectors: Tensor) -> Tensor:
        """Map vectors of ``layers="sense"`` (time, width)."""
        if self.sense is None:
            raise ConfigError(
                "layers must not be 'sense' for this aligned model, which has matrices for its layers only; use "
                "average, top, all, concat or a layer number"
            )
        return vectors @ self.sense.to(vectors.device, vectors.dtype).t()


def alignment_shapes(config: BiLmConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the matrices of an alignment."""
    width = config.width
    return {"layers": (config.n_layers, width, width), "sense": (width, width)}
