"""The parties' side of SecureBoost.

Every level of a tree is four asks, each with the number of the step as its round:

1. ``boost.grow`` (label owner): split the nodes of the level above as was chosen, then encrypt the
   gradients of the rows of every node that is wanted next, zeros for all other rows.
2. ``boost.sums`` (the others): multiply them by the candidate splits, and send the sums back.
3. ``boost.choose`` (label owner): decrypt, take the best split of every node, and tell its owner.
4. ``boost.split`` (the others): keep the conditions that were taken, and tell which rows go left.

Of two children only the smaller is wanted; the other is the difference.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
from msgspec import Meta

from solera.core.clients import Array, Client, FloatArray, IntArray
from solera.core.constraints import Count, NonNegative, NonNegativeInt, Positive
from solera.core.disclosure.declared import Shape
from solera.core.errors import DataError, Refusal
from solera.core.release import RowsOut
from solera.core.sealing import message
from solera.core.task import task
from solera.learn.probabilities import sigmoid, softmax
from solera.learn.trees.binned_rows import add_up
from solera.learn.trees.boosting.base import (
    Loss,
    boosting_target,
    gradients,
    initial_scores,
)
from solera.learn.trees.boosting.histograms import Bins, Units, rounded
from solera.learn.trees.boosting.level_growth import Limits
from solera.learn.vertical.boosting.candidates import Candidates
from solera.learn.vertical.boosting.growing import CandidateTree, units_of
from solera.learn.vertical.boosting.split_trees import Conditions, SplitTree, leaf_values
from solera.learn.vertical.judging import ModelName
from solera.learn.vertical.party import (
    SharedPart,
    keep_outputs,
    keep_part,
    part_of,
    private_seed,
    shared_rows,
)
from solera.privacy import additive
from solera.privacy.additive import CipherName, Form
from solera.privacy.additive.ckks import EXACT_BITS

MOST_PARTIES = 64
_MOST_ROWS = 20_000_000
_Bytes = Annotated[bytes, Meta(max_length=1 << 30)]
_Blocks = Annotated[list[_Bytes], Meta(max_length=_MOST_ROWS)]
_Nodes = Annotated[list[_Blocks], Meta(max_length=1 << 16)]
_Number = Annotated[int, Meta(ge=0, le=1 << 31)]
_Numbers = Annotated[list[_Number], Meta(min_length=2, max_length=MOST_PARTIES)]


class Begin(TypedDict):
    """What ``boost.begin`` takes: most bins of a column, and who holds the labels."""

    model: ModelName
    bins: Bins
    owner: _Number
    sealed: list[NonNegativeInt]


class Counted(TypedDict):
    """How many candidates a party has, by where they send missing values."""

    right: NonNegativeInt
    left: NonNegativeInt


class Taken(TypedDict):
    """The candidate that was taken at a node, and which of the node's rows it sends left."""

    node: NonNegativeInt
    candidate: NonNegativeInt
    left: _Bytes


class ToGrow(TypedDict):
    """What other parties tell the label owner before a level: candidates at first, then splits."""

    counted: NotRequired[Counted]
    taken: NotRequired[Annotated[list[Taken], Meta(max_length=1 << 16)]]


class FromSplitter(TypedDict):
    """Splits, and who made them."""

    sender: NonNegativeInt
    content: ToGrow


class Grow(TypedDict):
    """What ``boost.grow`` takes."""

    model: ModelName
    step: NonNegativeInt
    max_depth: Annotated[int, Meta(ge=1, le=20)]
    last: bool
    cipher: CipherName
    parties: _Numbers
    loss: Loss
    lr: Positive
    l2: NonNegative
    min_rows: Count
    sealed: list[FromSplitter]


class Gradients(TypedDict):
    """Encrypted gradients by wanted node; the first come with the key and their form."""

    nodes: _Nodes
    key: NotRequired[_Bytes]
    form: NotRequired[list[int]]


class FromLabels(TypedDict):
    """Encrypted gradients, and whose labels are behind them."""

    sender: NonNegativeInt
    content: Gradients


class Sum(TypedDict):
    """What ``boost.sums`` takes."""

    model: ModelName
    step: NonNegativeInt
    cipher: CipherName
    sealed: list[FromLabels]


class Summed(TypedDict):
    """Encrypted sums by wanted node."""

    nodes: _Nodes


class FromSummer(TypedDict):
    """Encrypted sums, and whose candidates they are of."""

    sender: NonNegativeInt
    content: Summed


class Choose(TypedDict):
    """What ``boost.choose`` takes."""

    model: ModelName
    step: NonNegativeInt
    sealed: list[FromSummer]


class ToTake(TypedDict):
    """Candidates of a party that are the best of a node, the node's rows, and where most go."""

    node: NonNegativeInt
    candidates: Annotated[IntArray, Shape("*", kind="i", least=0)]
    rows: _Bytes
    mostly_left: Annotated[IntArray, Shape("*", kind="b")]


class Chosen(TypedDict):
    """All that is asked of a party after a level."""

    take: Annotated[list[ToTake], Meta(max_length=1 << 16)]


class FromChooser(TypedDict):
    """Splits to take, and who chose them."""

    sender: NonNegativeInt
    content: Chosen


class Split(TypedDict):
    """What ``boost.split`` takes."""

    model: ModelName
    step: NonNegativeInt
    tree: NonNegativeInt
    sealed: list[FromChooser]


@task("boost.begin", ask=Begin, release=[RowsOut("sealed")], sealed=True)
def begin(client: Client, ask: Any) -> dict[str, Any]:
    """Cut this party's columns into bins and number all candidate splits."""
    rows = shared_rows(client, ask["model"])
    draw = np.random.default_rng(list(private_seed(client, "candidates")))
    owner = client.id == ask["owner"]
    shuffle = np.arange if owner else draw.permutation
    candidates = Candidates.of(rows, client.data.schema, ask["bins"], shuffle)
    names = [feature.name for feature in client.data.schema.features]
    conditions = Conditions.none(names).to_payload()
    keep_part(
        client,
        ask["model"],
        candidates=candidates.to_payload(),
        conditions=conditions,
        owner=ask["owner"],
    )
    if owner:
        return {"sealed": []}
    counts = {"right": candidates.right, "left": len(candidates) - candidates.right}
    return {"sealed": [message(ask["owner"], "boost.grow", 0, {"counted": counts})]}


@task("boost.grow", ask=Grow, release=[RowsOut("sealed")], sealed=True)
def grow(client: Client, ask: Any) -> dict[str, Any]:
    """Split the nodes of the last level, and encrypt the gradients of those wanted next."""
    model, step = ask["model"], ask["step"]
    rows = shared_rows(client, model)
    number, level = divmod(step, ask["max_depth"] + 1)
    kept = _first_state(client, ask, rows) if step == 0 else part_of(client, model)["boosting"]
    if kept["step"] != step:
        raise Refusal(f"step {step} does not follow step {kept['step'] - 1}")
    state = dict(kept)
    if level == 0:
        tree = _new_tree(state, ask, rows.y, number)
    else:
        tree = _take_splits(client, state, ask, rows.X)
    if level == ask["max_depth"]:
        _finish_tree(client, state, ask, tree)
        keep_part(client, model, boosting=None if ask["last"] else {**state, "step": step + 1})
        return {"sealed": []}
    secret = additive.read_secret(ask["cipher"], state["secret"])
    form = Form.from_list(state["form"])
    nodes = []
    for node in tree.wanted.tolist():
        carried = np.where(state["at"] == node, state["carried"].T, 0)
        nodes.append(secret.encrypt(carried.astype(np.int64), form))
    content: dict[str, Any] = {"nodes": nodes}
    if step == 0:
        content |= {"key": secret.public.to_bytes(), "form": state["form"]}
    state |= {"tree": tree.to_payload()}
    keep_part(client, model, boosting={**state, "step": step + 1})
    others = [p for p in ask["parties"] if p != client.id]
    return {"sealed": [message(p, "boost.sums", step, content) for p in others]}


def _first_state(client: Client, ask: Any, rows: Any) -> dict[str, Any]:
    """The label owner's key, who has which candidates, and the scores before the first tree."""
    if rows.y is None:
        raise DataError("this party holds no labels")
    classes = client.data.schema.classes
    y = boosting_target(rows.y, {"loss": ask["loss"], "classes": classes})
    if ask["loss"] == "squared":
        if not np.isfinite(y).all():
            raise DataError("labels are missing or infinite")
        initial = np.array([y.mean()])
    else:
        initial = initial_scores(np.bincount(y, minlength=len(classes)))
    own = Candidates.from_payload(part_of(client, ask["model"])["candidates"])
    counts = {m["sender"]: m["content"]["counted"] for m in ask["sealed"]}
    counts[client.id] = {"right": own.right, "left": len(own) - own.right}
    if set(counts) != set(ask["parties"]):
        raise Refusal("not all parties have said how many candidates they have")
    layout = [[p, counts[p]["right"], counts[p]["left"]] for p in ask["parties"]]
    widest = max(1, *(right + left for p, right, left in layout if p != client.id))
    secret = additive.generate(ask["cipher"])
    vectors = 3 if not (units := _units(len(y), 1.0, ask)).packed and not units.counted else 2
    form = secret.public.form(vectors=vectors, rows=len(y), columns=widest, sum_bits=EXACT_BITS)
    keep_part(client, ask["model"], initial=initial, trees=[], losses=[])
    return {
        "cipher": ask["cipher"],
        "secret": secret.to_bytes(),
        "form": form.to_list(),
        "layout": layout,
        "scores": np.repeat(initial[:, None], len(y), axis=1),
        "y": y,
        "step": 0,
    }


def _units(rows: int, bound: float, ask: Any) -> Units:
    return units_of(rows, bound, counted=ask["loss"] == "squared")


def _new_tree(state: dict[str, Any], ask: Any, y: Any, number: int) -> CandidateTree:
    """Begin a tree: with new gradients where it is the first of its round."""
    scores = state["scores"]
    k = number % len(scores)
    if k == 0:
        g, h, losses = gradients(scores, state["y"], ask["loss"])
        state |= {"g": g, "h": h, "loss": float(losses.mean())}
    g, h = state["g"][k], state["h"][k]
    bound = float(np.abs(g).max()) if ask["loss"] == "squared" else 1.0
    units = _units(len(g), max(bound, 1e-300), ask)
    state |= {"carried": rounded(g, h, units), "at": np.zeros(len(g), dtype=np.int64)}
    return CandidateTree(units, Limits(ask["l2"], ask["lr"], ask["min_rows"]))


@task("boost.sums", ask=Sum, release=[RowsOut("sealed")], sealed=True)
def add_gradients(client: Client, ask: Any) -> dict[str, Any]:
    """Encrypted sums of gradients to the left of every candidate of this party."""
    model = ask["model"]
    part = part_of(client, model)
    received = [m for m in ask["sealed"] if m["sender"] == part["owner"]]
    if len(received) != 1:
        raise Refusal("no gradients have come from the owner of the labels")
    content = received[0]["content"]
    if "key" in content:
        additive.read_public(ask["cipher"], content["key"])
        Form.from_list(list(content["form"]))
        keep_part(client, model, key=content["key"], form=list(content["form"]))
        part = part_of(client, model)
    if "key" not in part:
        raise Refusal("no key has come from the owner of the labels")
    key = additive.read_public(ask["cipher"], part["key"])
    form = Form.from_list(part["form"])
    rows = shared_rows(client, model)
    if form.rows != len(rows):
        raise Refusal(f"gradients of {form.rows:,} rows came, the parties share {len(rows):,}")
    candidates = Candidates.from_payload(part["candidates"])
    prepared = _prepared(key, candidates, candidates.cells(rows.X), form)
    sums = [
        key.multiply(blocks, prepared, form, masked=False).blocks for blocks in content["nodes"]
    ]
    reply = message(part["owner"], "boost.choose", ask["step"], {"nodes": sums})
    return {"sealed": [reply]}


_matrices: OrderedDict[bytes, Any] = OrderedDict()
_KEPT = 4
"""Matrices of candidates that a process keeps ready: the same ones serve every tree."""


def _prepared(key: Any, candidates: Candidates, cells: Any, form: Form) -> Any:
    digest = hashlib.blake2b(repr((key.scheme, form)).encode())
    for array in (cells, candidates.column, candidates.bin, candidates.missing_left):
        digest.update(np.ascontiguousarray(array).tobytes())
    name = digest.digest()
    if name not in _matrices:
        _matrices[name] = key.prepare(candidates.matrix(cells), form)
    _matrices.move_to_end(name)
    while len(_matrices) > _KEPT:
        _matrices.popitem(last=False)
    return _matrices[name]


@task("boost.choose", ask=Choose, release=[RowsOut("sealed")], sealed=True)
def choose(client: Client, ask: Any) -> dict[str, Any]:
    """The best split of every node, of all parties' candidates; its owner is told."""
    model = ask["model"]
    part = part_of(client, model)
    state = dict(part["boosting"])
    tree = CandidateTree.from_payload(state["tree"])
    received = {m["sender"]: m["content"]["nodes"] for m in ask["sealed"]}
    sums = _all_sums(client, ask, state, tree, received)
    best = tree.best(sums) if len(tree.wanted) else {}
    layout = _Layout(state["layout"])
    orders: dict[int, list[dict[str, Any]]] = {p: [] for p in received}
    own: list[list[int]] = []
    candidates = Candidates.from_payload(part["candidates"])
    left_rows = _left_share(tree, sums)
    for node, tied in best.items():
        party, numbers = layout.first(tied)
        if party == client.id:
            own.append([node, candidates.first_of(numbers)])
            continue
        orders[party].append(
            {
                "node": node,
                "candidates": numbers,
                "rows": np.packbits(state["at"] == node).tobytes(),
                "mostly_left": left_rows(node, layout.places(party, numbers)),
            }
        )
    keep_part(client, model, boosting={**state, "sums": sums, "own": own})
    return {
        "sealed": [message(p, "boost.split", ask["step"], {"take": o}) for p, o in orders.items()]
    }


def _left_share(tree: CandidateTree, sums: IntArray) -> Any:
    """(node, candidates) → whether most rows of the node go left."""
    nodes, hist = tree._all_histograms(sums) if len(tree.wanted) else (tree.wanted, sums)
    place = {node: i for i, node in enumerate(nodes.tolist())}

    def mostly_left(node: int, candidates: IntArray) -> Array:
        left = tree.units.unpacked(hist[place[node], candidates].T)[2]
        return np.asarray(2 * left >= tree.units.unpacked(hist[place[node], -1])[2])

    return mostly_left


class _Layout:
    """Where the candidates of each party stand: first all with missing values to the right."""

    def __init__(self, layout: Any) -> None:
        self.blocks: list[tuple[int, int, int]] = []
        """Party, number of its first candidate here, and how many."""
        self.blocks += [(party, 0, right) for party, right, _ in layout]
        self.blocks += [(party, right, left) for party, right, left in layout]
        self.ends = np.cumsum([count for _, _, count in self.blocks])

    def joined(self, sums: dict[int, IntArray]) -> IntArray:
        """Sums of all candidates: nodes × candidates × k."""
        return np.concatenate(
            [sums[party][:, first : first + count] for party, first, count in self.blocks], axis=1
        )

    def first(self, tied: IntArray) -> tuple[int, IntArray]:
        """The first party, and its tied candidates there, by its own numbers."""
        block = int(np.searchsorted(self.ends, tied[0], side="right"))
        party, first, count = self.blocks[block]
        start = int(self.ends[block]) - count
        return party, tied[tied < self.ends[block]] - start + first

    def places(self, party: int, numbers: IntArray) -> IntArray:
        """Where candidates of a party stand."""
        found = np.empty(len(numbers), dtype=np.int64)
        for (owner, first, count), end in zip(self.blocks, self.ends, strict=True):
            here = (owner == party) & (numbers >= first) & (numbers < first + count)
            found[here] = numbers[here] - first + int(end) - count
        return found


def _all_sums(
    client: Client, ask: Any, state: dict[str, Any], tree: CandidateTree, received: dict[int, Any]
) -> IntArray:
    """Sums of all parties' candidates at the wanted nodes, and over all rows of each."""
    part = part_of(client, ask["model"])
    own = Candidates.from_payload(part["candidates"])
    form = Form.from_list(state["form"])
    at, carried = state["at"], state["carried"]
    wanted = tree.wanted
    others = {party: right + left for party, right, left in state["layout"] if party != client.id}
    if set(received) != set(others):
        raise Refusal("not all parties have sent their sums")
    if not len(wanted):
        width = 1 + sum(right + left for _, right, left in state["layout"])
        return np.zeros((0, width, carried.shape[1]), dtype=np.int64)
    cells = own.cells(shared_rows(client, ask["model"]).X)
    hist = add_up(cells, at, np.array([len(at)]), wanted, carried, int(own.bins.starts_[-1]))[0]
    sums = {client.id: own.sums(np.rint(hist).astype(np.int64))}
    secret = additive.read_secret(state["cipher"], state["secret"])
    for party, columns in others.items():
        if len(received[party]) != len(wanted):
            raise Refusal("sums of other nodes came than were asked for")
        decrypted = [
            secret.public.unmask(secret.decrypt(blocks, form, columns), None, form, columns)
            for blocks in received[party]
        ]
        sums[party] = np.stack(decrypted).transpose(0, 2, 1).astype(np.int64)
    totals = np.stack([carried[at == node].sum(axis=0) for node in wanted.tolist()])
    joined = _Layout(state["layout"]).joined(sums)
    return np.concatenate([joined, totals[:, None].astype(np.int64)], axis=1)


@task("boost.split", ask=Split, release=[RowsOut("sealed")], sealed=True)
def split(client: Client, ask: Any) -> dict[str, Any]:
    """Keep the conditions that were taken of this party's, and tell which rows go left."""
    model = ask["model"]
    part = part_of(client, model)
    received = [m for m in ask["sealed"] if m["sender"] == part["owner"]]
    if len(received) != 1:
        raise Refusal("the owner of the labels has not chosen yet")
    candidates = Candidates.from_payload(part["candidates"])
    conditions = Conditions.from_payload(part["conditions"])
    cells = candidates.cells(shared_rows(client, model).X)
    taken = []
    for order in received[0]["content"]["take"]:
        numbers = order["candidates"]
        if not len(numbers) or numbers.max() >= len(candidates):
            raise Refusal("a split was chosen that is none of this party's")
        inside = np.unpackbits(np.frombuffer(order["rows"], np.uint8))[: len(cells)].astype(bool)
        if len(inside) != len(cells):
            raise Refusal("a node has other rows than the parties share")
        number = candidates.first_of(numbers)
        mostly_left = bool(order["mostly_left"][numbers.tolist().index(number)])
        condition = _condition(candidates, number, cells[inside], mostly_left)
        conditions = conditions.added(ask["tree"], order["node"], *condition)
        left = candidates.left(cells[inside], number)
        taken.append(
            {"node": order["node"], "candidate": number, "left": np.packbits(left).tobytes()}
        )
    keep_part(client, model, conditions=conditions.to_payload())
    reply = message(part["owner"], grow, ask["step"] + 1, {"taken": taken})
    return {"sealed": [reply]}


def _condition(
    candidates: Candidates, number: int, cells: Any, mostly_left: bool
) -> tuple[int, float, bool]:
    """Column, threshold and side of missing values; where none is missing, that of most rows."""
    column, bin = int(candidates.column[number]), int(candidates.bin[number])
    missing = (cells[:, column] == candidates.bins.starts_[column + 1] - 1).any()
    missing_left = bool(candidates.missing_left[number]) if missing else mostly_left
    return column, candidates.threshold(column, bin), missing_left


def _take_splits(client: Client, state: dict[str, Any], ask: Any, X: Any) -> CandidateTree:
    """Split the nodes of the last level and move their rows down."""
    model = ask["model"]
    part = part_of(client, model)
    tree = CandidateTree.from_payload(state["tree"])
    number = ask["step"] // (ask["max_depth"] + 1)
    layout = _Layout(state["layout"])
    candidates = Candidates.from_payload(part["candidates"])
    cells = candidates.cells(X)
    at = state["at"]
    chosen: dict[int, int] = {}
    left: dict[int, Array] = {}
    owners = dict(state["owners"]) if state.get("owners") else {}
    for node, candidate in state["own"]:
        chosen[node] = int(layout.places(client.id, np.array([candidate]))[0])
        left[node] = candidates.left(cells[at == node], candidate)
        owners[str(node)] = client.id
    for mail in ask["sealed"]:
        for taken in mail["content"].get("taken", ()):
            node = int(taken["node"])
            place = layout.places(mail["sender"], np.array([taken["candidate"]]))
            chosen[node] = int(place[0])
            rows = int((at == node).sum())
            bits = np.unpackbits(np.frombuffer(taken["left"], np.uint8))[:rows]
            left[node] = bits.astype(bool)
            owners[str(node)] = int(mail["sender"])
    before = {node: at == node for node in chosen}
    sums = state["sums"]
    if len(tree.wanted):
        expected = tree.best(sums)
        for node in expected:
            if chosen.get(node) not in expected[node].tolist():
                raise Refusal(f"the split of node {node} that was chosen was not made")
        mostly = _left_share(tree, sums)
        conditions = Conditions.from_payload(part["conditions"])
        for node, candidate in state["own"]:
            most = bool(mostly(node, np.array([chosen[node]]))[0])
            condition = _condition(candidates, candidate, cells[before[node]], most)
            conditions = conditions.added(number, node, *condition)
        keep_part(client, model, conditions=conditions.to_payload())
        tree.grow_by(sums, chosen)
        at = at.copy()
        children = tree.last_splits()[3]
        for node, inside in before.items():
            at[inside] = np.where(left[node], children[node], children[node] + 1)
    state |= {"at": at, "owners": owners, "sums": None, "own": []}
    return tree


def _finish_tree(client: Client, state: dict[str, Any], ask: Any, tree: CandidateTree) -> None:
    """Add a tree that has all its levels to the model, and its leaves to the scores."""
    part = part_of(client, ask["model"])
    built = tree.builder.build()
    owner = np.full(len(built), -1, dtype=np.int64)
    for node, party in (state["owners"] or {}).items():
        owner[int(node)] = party
    child = np.array([built.branches[s] if a else -1 for s, a in zip(built.start, built.arity)])
    value = built.value[:, 0]
    done = SplitTree(owner, child, value, built.support)
    k = ask["step"] // (ask["max_depth"] + 1) % len(state["scores"])
    scores = state["scores"].copy()
    scores[k] += value[state["at"]]
    losses = [*part["losses"], state["loss"]] if k == 0 else part["losses"]
    keep_part(client, ask["model"], trees=[*part["trees"], done.to_payload()], losses=losses)
    state |= {"scores": scores, "owners": None, "tree": None}


# --- use ---


class SidesOf(TypedDict):
    """Which rows every condition of a party sends left, a bit for each."""

    conditions: NonNegativeInt
    sides: _Bytes


class FromHolder(TypedDict):
    """Sides, and whose conditions they are of."""

    sender: NonNegativeInt
    content: SidesOf


class Score(TypedDict):
    """What ``boost.score`` takes."""

    model: ModelName
    part: SharedPart
    loss: Loss
    sealed: list[FromHolder]


class TellSides(TypedDict):
    """A model, rows, and the ask in which the label owner reads the sides."""

    model: ModelName
    part: SharedPart
    sealed: list[NonNegativeInt]


@task("boost.sides", ask=TellSides, release=[RowsOut("sealed")], sealed=True)
def tell_sides(client: Client, ask: Any) -> dict[str, Any]:
    """Which of the rows each of this party's conditions sends left, for the label owner."""
    part = part_of(client, ask["model"])
    conditions = Conditions.from_payload(part["conditions"])
    sides = conditions.sides(shared_rows(client, ask["model"], ask["part"]).X)
    content = {"conditions": len(conditions), "sides": np.packbits(sides).tobytes()}
    return {"sealed": [message(part["owner"], "boost.score", 0, content)]}


@task("boost.score", ask=Score, release=[], sealed=True)
def score(client: Client, ask: Any) -> dict[str, Any]:
    """What the model says of each row, kept by the label owner."""
    model = ask["model"]
    part = part_of(client, model)
    rows = shared_rows(client, model, ask["part"])
    conditions = Conditions.from_payload(part["conditions"])
    sides = {client.id: conditions.sides(rows.X)}
    for mail in ask["sealed"]:
        count = mail["content"]["conditions"]
        bits = np.unpackbits(np.frombuffer(mail["content"]["sides"], np.uint8))
        if len(bits) < count * len(rows):
            raise Refusal("a party has sent the sides of fewer rows than all share")
        found = bits[: count * len(rows)].reshape(count, len(rows))
        sides[mail["sender"]] = found.astype(bool)
    trees = [SplitTree.from_payload(tree) for tree in part["trees"]]
    scores = _scores(trees, part["initial"], sides, len(rows))
    keep_outputs(client, model, ask["part"], _outputs(scores, ask["loss"]))
    return {}


def _scores(trees: Any, initial: FloatArray, sides: Any, rows: int) -> FloatArray:
    """Initial score plus the trees' values, rows × trees of a round."""
    total = np.repeat(initial[None], rows, axis=0)
    for t, values in enumerate(leaf_values(trees, sides, rows)):
        total[:, t % len(initial)] += values
    return total


def _outputs(scores: FloatArray, loss: Literal["squared", "sigmoid", "softmax"]) -> FloatArray:
    if loss == "squared":
        return scores
    if loss == "softmax":
        return softmax(scores)
    p = sigmoid(scores)
    return np.concatenate([1 - p, p], axis=1)
