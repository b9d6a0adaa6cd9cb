"""``solera peers``: who else takes part, as the coordinator says, and whose key is believed."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from solera.cli.client import FOLDER, Folder, check_folder
from solera.cli.data import AsJson
from solera.cli.output import print_json, print_table
from solera.cli.serve import check_name, extra
from solera.core.errors import UsageError

if TYPE_CHECKING:
    from solera.serve.peers import KnownKeys
    from solera.serve.wire import Peer

app = typer.Typer(
    no_args_is_help=True, help="The other clients of a federation, and the keys they are known by."
)
_PATIENCE = 5.0
_KEY = re.compile("[0-9a-f]{64}")


@app.command("list", epilog="Example: solera peers list --folder agent")
def list_peers(folder: Folder = FOLDER, as_json: AsJson = False) -> None:
    """Who takes part, with which key, and whether that is the key that is known here.

    Nothing is remembered by looking. A client that shows another key than the known one, or whose
    key to seal to is not signed with its own, is not to be trusted: the command ends with 1.
    """
    with extra("looking at clients"):
        from solera.serve import wire
        from solera.serve.agent.home import connect_to, read_place
        from solera.serve.identity import Identity
        from solera.serve.peers import FILE, KnownKeys

    check_folder(folder)
    place = read_place(folder)
    with closing(connect_to(place, Identity.load(folder), _PATIENCE)) as connection:
        peers = connection.call("GET", "/v1/peers", wire.Peers).peers
    known = KnownKeys(folder / FILE)
    found = [(peer, _standing(peer, place.federation, known)) for peer in peers]
    if as_json:
        print_json(
            [
                {"id": peer.id, "name": peer.name, "key": peer.sign_key, "standing": standing}
                for peer, standing in found
            ]
        )
    else:
        rows = [(str(peer.id), peer.name, peer.sign_key, standing) for peer, standing in found]
        print_table([">id", "name", "key", "standing"], rows)
    if any(standing not in (_KNOWN, _NEW) for _, standing in found):
        raise typer.Exit(1)


_KNOWN, _NEW = "known", "not seen before"


def _standing(peer: Peer, federation: str, known: KnownKeys) -> str:
    from solera.serve.peers import is_vouched

    believed = known.key(federation, peer.name)
    if believed not in (None, peer.sign_key):
        return f"WRONG, known by {believed}"
    if not is_vouched(peer, federation):
        return "WRONG, has not signed its key to seal to"
    return _NEW if believed is None else _KNOWN


@app.command("pin", epilog="Example: solera peers pin north 5e1f… --folder agent")
def pin(
    name: Annotated[str, typer.Argument(help="The client's name.")],
    key: Annotated[str, typer.Argument(help="Its key, 64 digits, as its owner told you.")],
    folder: Folder = FOLDER,
) -> None:
    """Believe a client by this key and no other, whatever the coordinator will say.

    Owners read their key to one another over the telephone: it is in the list of any client.
    """
    with extra("looking at clients"):
        from solera.serve.agent.home import read_place
        from solera.serve.peers import FILE, KnownKeys

    check_folder(folder)
    check_name("NAME", name)
    if not _KEY.fullmatch(key):
        raise UsageError(f"{key[:80]!r} is no key", hint="a key has 64 digits, 0 to 9 and a to f")
    federation = read_place(folder).federation
    KnownKeys(folder / FILE).check(federation, name, key)
    typer.echo(f"{name} of {federation} is known by {key}")
