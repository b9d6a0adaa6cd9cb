"""A federation across real machines: coordinator, client agent, and what lets them trust."""
