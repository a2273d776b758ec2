"""Documented import path of `Profile`; the simulator itself is `holdfast.testing.sim`."""

from holdfast.testing.sim.worlds.faults import Fault, Guarding, Profile, Swarm, draw_swarm

__all__ = ["Fault", "Guarding", "Profile", "Swarm", "draw_swarm"]
