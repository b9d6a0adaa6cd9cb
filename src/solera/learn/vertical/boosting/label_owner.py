"""The label owner's side of SecureBoost.

Every level of a tree is four asks, each with the number of the step as its round:

1. ``boost.grow`` (label owner): split the nodes of the level above as was chosen, then encrypt the
   gradients of the rows of every node that is wanted next, zeros for all other rows.
2. ``boost.sums`` (the others): multiply them by the candidate splits, and send the sums back.
3. ``boost.choose`` (label owner): decrypt, take the best split of every node, and tell its owner.
4. ``boost.split`` (the others): keep the conditions that were taken, and tell which rows go left.

Of two children only the smaller is wanted; the other is the difference.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import Array, Client, FloatArray, IntArray
from solera.core.errors import DataError, Refusal
from solera.core.sealing import message
from solera.core.task import task
from solera.learn.probabilities import sigmoid, softmax
from solera.learn.trees.binned_rows import add_up
from solera.learn.trees.boosting.base import Loss, boosting_target, gradients, initial_scores
from solera.learn.trees.boosting.histograms import Units, rounded
from solera.learn.trees.boosting.level_growth import Limits
from solera.learn.vertical.boosting.candidates import Candidates
from solera.learn.vertical.boosting.feature_owner import condition_of, finish
from solera.learn.vertical.boosting.growing import CandidateTree, Layout, units_of
from solera.learn.vertical.boosting.split_trees import Conditions, SplitTree, leaf_values
from solera.learn.vertical.party import keep_outputs, keep_part, part_of, shared_rows
from solera.privacy import additive
from solera.privacy.additive import Form
from solera.privacy.additive.ckks import EXACT_BITS


@task("boost.grow", sealed=True)
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
        tree = _new_tree(state, ask, number)
    else:
        tree = _take_splits(client, state, ask, rows.X)
    if level == ask["max_depth"]:
        _finish_tree(client, state, ask, tree)
        keep_part(client, model, boosting={**state, "step": step + 1})
        if ask["last"]:
            finish(client, model)
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
    counts = {m["sender"]: m["content"]["counted"] for m in ask.get("sealed", ())}
    counts[client.id] = {"right": own.right, "left": len(own) - own.right}
    if set(counts) != set(ask["parties"]):
        raise Refusal("not all parties have said how many candidates they have")
    layout = [[p, counts[p]["right"], counts[p]["left"]] for p in ask["parties"]]
    widest = max(1, *(right + left for p, right, left in layout if p != client.id))
    secret = additive.generate(ask["cipher"])
    vectors = 3 if not (units := _units(len(y), 1.0, ask)).packed and not units.counted else 2
    form = secret.public.form(vectors=vectors, rows=len(y), columns=widest, sum_bits=EXACT_BITS)
    keep_part(client, ask["model"], loss=ask["loss"], initial=initial, trees=[], losses=[])
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


def _new_tree(state: dict[str, Any], ask: Any, number: int) -> CandidateTree:
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


@task("boost.choose", sealed=True)
def choose(client: Client, ask: Any) -> dict[str, Any]:
    """The best split of every node, of all parties' candidates; its owner is told."""
    model = ask["model"]
    part = part_of(client, model)
    state = dict(part["boosting"])
    tree = CandidateTree.from_payload(state["tree"])
    received = {m["sender"]: m["content"]["nodes"] for m in ask["sealed"]}
    sums = _all_sums(client, ask, state, tree, received)
    best = tree.best(sums) if len(tree.wanted) else {}
    layout = Layout(state["layout"])
    orders: dict[int, list[dict[str, Any]]] = {p: [] for p in received}
    own: list[list[int]] = []
    candidates = Candidates.from_payload(part["candidates"])
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
            }
        )
    keep_part(client, model, boosting={**state, "sums": sums, "own": own})
    return {
        "sealed": [message(p, "boost.split", ask["step"], {"take": o}) for p, o in orders.items()]
    }


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
    joined = Layout(state["layout"]).joined(sums)
    return np.concatenate([joined, totals[:, None].astype(np.int64)], axis=1)


def _take_splits(client: Client, state: dict[str, Any], ask: Any, X: Any) -> CandidateTree:
    """Split the nodes of the last level and move their rows down."""
    model = ask["model"]
    part = part_of(client, model)
    tree = CandidateTree.from_payload(state["tree"])
    number = ask["step"] // (ask["max_depth"] + 1)
    layout = Layout(state["layout"])
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
    for mail in ask.get("sealed", ()):
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
        conditions = Conditions.from_payload(part["conditions"])
        for node, candidate in state["own"]:
            condition = condition_of(candidates, candidate, cells[before[node]])
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
    child = np.full(len(built), -1, dtype=np.int64)
    inner = built.arity > 0
    child[inner] = built.branches[built.start[inner]]
    value = built.value[:, 0]
    done = SplitTree(owner, child, value, built.support)
    k = ask["step"] // (ask["max_depth"] + 1) % len(state["scores"])
    scores = state["scores"].copy()
    scores[k] += value[state["at"]]
    losses = [*part["losses"], state["loss"]] if k == 0 else part["losses"]
    keep_part(client, ask["model"], trees=[*part["trees"], done.to_payload()], losses=losses)
    state |= {"scores": scores, "owners": None, "tree": None}


@task("boost.score", sealed=True)
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
    keep_outputs(client, model, ask["part"], _outputs(scores, part["loss"]))
    return {}


def _scores(trees: Any, initial: FloatArray, sides: Any, rows: int) -> FloatArray:
    """Initial score plus the trees' values, rows × trees of a round."""
    total = np.repeat(initial[None], rows, axis=0)
    for t, values in enumerate(leaf_values(trees, sides, rows)):
        total[:, t % len(initial)] += values
    return total


def _outputs(scores: FloatArray, loss: Loss) -> FloatArray:
    if loss == "squared":
        return scores
    if loss == "softmax":
        return softmax(scores)
    p = sigmoid(scores)
    return np.concatenate([1 - p, p], axis=1)
