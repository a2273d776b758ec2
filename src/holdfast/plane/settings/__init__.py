"""The settings of a control plane: types, sources, consistency."""

from holdfast.plane.settings.settings import Settings

__all__ = ["Settings"]
