"""``so.energy``: what training takes from the socket."""

from solera.green.energy import EnergyBudget, EnergyOptions, EnergyUse, track_energy

__all__ = ["EnergyBudget", "EnergyOptions", "EnergyUse", "track_energy"]
