"""Epochs: anybody of a federation proposes a draft, its owners enter their parts and sign.

Then their agents find the atoms, in a closed job, and sign them.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from solera.serve.coordinator.routes.messages import Digest, MessageRoute, Name
from solera.serve.coordinator.service import Coordinator
from solera.serve.coordinator.store.base import Denied, NotFound
from solera.serve.coordinator.store.tables import ClientRow
from solera.serve.epochs import DraftState, NewDraft, NewPart, NewSignature, unframed
from solera.trust.epoch.epoch import Draft, Owner, Signature


def epochs_of(coordinator: Coordinator) -> APIRouter:
    """The routes of dictionaries and epochs."""
    routes = APIRouter(tags=["epochs"], route_class=MessageRoute)
    store = coordinator.store
    Client = Annotated[ClientRow, Depends(coordinator.client)]
    Anyone = Annotated[ClientRow | None, Depends(coordinator.anyone)]

    @routes.put("/v1/federations/{federation}/dictionary")
    def propose(federation: Name, who: Anyone, new: NewDraft) -> DraftState:
        """Show a draft to the owners that it names; the same again tells how far they are."""
        _check_member(federation, who)
        return store.add_draft(federation, Draft.parse(new.text, file="the draft"))

    @routes.get("/v1/federations/{federation}/dictionary")
    def newest(federation: Name, who: Anyone) -> DraftState:
        """The newest draft, and how far its owners are."""
        _check_member(federation, who)
        return store.newest_draft(federation)

    @routes.get("/v1/federations/{federation}/epoch")
    def epoch(federation: Name, who: Anyone) -> Response:
        """The epoch that all its owners have signed last, with their signatures."""
        _check_member(federation, who)
        found = store.signed_epochs(federation)
        signed = found[0].agreement().signed() if found else None
        if signed is None:
            raise NotFound("no epoch is signed yet")
        return Response(signed.encode(), media_type="application/octet-stream")

    @routes.put("/v1/dictionary/{draft}/part")
    def enter(draft: Digest, who: Client, new: NewPart) -> DraftState:
        """What an owner enters: its key, a commitment to its rows, and its runtime."""
        return store.enter_part(draft, who, Owner.decode(unframed(new.part)))

    @routes.put("/v1/dictionary/{draft}/signature")
    def sign(draft: Digest, who: Client, new: NewSignature) -> DraftState:
        """An owner signs the epoch, one that leaves consents to it, or an agent signs its atoms."""
        signature = Signature.decode(unframed(new.signature))
        if new.atoms is not None:
            return store.add_atoms(draft, who, signature, unframed(new.atoms))
        state = store.add_signature(draft, who, signature)
        coordinator.notifier.notify(("texts", who.federation))
        return state

    return routes


def _check_member(federation: str, who: ClientRow | None) -> None:
    if who is not None and who.federation != federation:
        raise Denied(f"client {who.name!r} is of another federation")
