"""Documented import path of `run_seed`; the simulator itself is `holdfast.testing.sim`."""

from holdfast.testing.sim.worlds.world import SimWorld, run_seed
from holdfast.testing.sim.worlds.world import WorldOutcome as Outcome

__all__ = ["Outcome", "SimWorld", "run_seed"]
