"""``so.audit``: attacks by which owners and authors measure what a model or a release tells."""

from solera.audit.epsilon import epsilon_of_guesses, epsilon_of_scores, epsilon_of_test
from solera.audit.inversion import Inversion, inversion
from solera.audit.mechanism import Distinguished, mechanism
from solera.audit.membership import Membership, membership
from solera.audit.reconstruction import Reconstruction, reconstruction

__all__ = [
    "Distinguished",
    "Inversion",
    "Membership",
    "Reconstruction",
    "epsilon_of_guesses",
    "epsilon_of_scores",
    "epsilon_of_test",
    "inversion",
    "mechanism",
    "membership",
    "reconstruction",
]
