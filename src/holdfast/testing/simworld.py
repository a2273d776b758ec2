"""Documented import path of `run_seed`; the simulator itself is `holdfast.testing.sim`."""

from holdfast.testing.sim.worlds.world import Outcome, SimWorld, run_seed

__all__ = ["Outcome", "SimWorld", "run_seed"]
