"""The scene of each profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.testing.simelection import Election
from holdfast.testing.simfaults import Profile
from holdfast.testing.simguarded import GuardedScene
from holdfast.testing.simquorum import QuorumScene
from holdfast.testing.simscene import Scene
from holdfast.testing.simshift import LongScene

if TYPE_CHECKING:
    from holdfast.testing.simworld import SimWorld

_SCENES: Final[dict[Profile, type[Scene]]] = {
    Profile.BUSY: Scene,
    Profile.LONG: LongScene,
    Profile.GUARDED: GuardedScene,
    Profile.ELECTED: Election,
    Profile.QUORUM: QuorumScene,
}


def scene_of(world: SimWorld) -> Scene:
    """A new scene for this world."""
    return _SCENES[world.swarm.profile](world)
