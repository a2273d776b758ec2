"""The scene of each profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.testing.sim.worlds.elected import Election
from holdfast.testing.sim.worlds.faults import Profile
from holdfast.testing.sim.worlds.guarded import GuardedScene
from holdfast.testing.sim.worlds.long_sessions import LongScene
from holdfast.testing.sim.worlds.profile import Scene
from holdfast.testing.sim.worlds.quorum_world import QuorumScene

if TYPE_CHECKING:
    from holdfast.testing.sim.worlds.world import SimWorld

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
