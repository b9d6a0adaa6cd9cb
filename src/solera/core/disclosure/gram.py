"""Gram matrices: what a least-squares layer needs of its rows, and when it may leave.

G = Σᵢ wᵢ zᵢzᵢᵀ of fewer rows than columns tells the rows up to a rotation, of one row the row
itself. So a matrix rests on ``gram_rows`` distinct rows per column, and so does the difference of
two that leave, be they of one reply (classes, labels, the samples of an ensemble) or of two; every
entry rests on ``min_count`` effective rows (:mod:`solera.core.disclosure.small_entries`).

What remains possible without noise: the same rows seen through many different columns (hidden
layers, encoders) give many matrices, which together narrow the rows down; the owner's budget of
numbers limits them, nothing else does. A combination of three or more columns that is 0 for all but
a few rows is not looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from threadpoolctl import threadpool_limits

from solera.core.clients import BoolArray, Client, FloatArray, IntArray
from solera.core.disclosure.evidence import Persons, Sums, effective_of, sums_of
from solera.core.disclosure.small_entries import (
    at_one_scale,
    dependencies,
    moved,
    not_by_classes,
    not_by_sums,
    small_entries,
    too_near,
    usual,
)
from solera.core.release import Leaving, Release

Layout = Literal["one", "classes", "labels", "outputs"]


@dataclass(frozen=True, slots=True)
class Member:
    """What the rows give to one member of an ensemble, or to the only one; a line for each row.

    ``Z``: the columns, the first all ones. ``times``: how often each row is taken. ``weights``:
    those of the rows in each matrix. ``moments``, ``squares``: Σᵢ zᵢ tᵢc and Σᵢ sᵢc for every
    output c. All but Z count rows as often as they are taken.

    ``layout``: "one" matrix of all rows; one of the rows of each of the "classes"; of all rows
    and of those with each of the "labels"; or one for each of the "outputs". ``base`` are t and s
    of a row that has not the class or label c, None where outputs are numbers. ``exclusive``: every
    row has one of the classes.
    """

    Z: FloatArray
    times: FloatArray
    weights: FloatArray
    moments: FloatArray
    squares: FloatArray
    layout: Layout
    base: tuple[float, float] | None = None
    exclusive: bool = False

    def bases(self) -> tuple[FloatArray, FloatArray]:
        """t and s of a row that tells nothing, for every output."""
        outputs = self.moments.shape[1]
        if self.base is not None:
            return np.full(outputs, self.base[0]), np.full(outputs, self.base[1])
        used = self.times > 0
        once = np.where(used, self.times, 1.0)[:, None]
        return usual(self.moments / once, used), usual(self.squares / once, used)

    def only(self, used: BoolArray) -> Member:
        """The same without the other rows in times, moments and squares."""
        return replace(
            self,
            times=np.where(used, self.times, 0.0),
            moments=np.where(used[:, None], self.moments, 0.0),
            squares=np.where(used[:, None], self.squares, 0.0),
        )

    def row_sets(self) -> Sums:
        """Which rows every matrix is of, in a form that those of other asks compare with."""
        sets = np.where(self.weights != 0, self.times[:, None], 0.0)
        if self.layout == "outputs":
            sets = self.weights / np.maximum(self.weights.max(axis=0), 1e-300)
        return Sums(sets, what="rows of Gram matrices")

    def columns(self) -> Sums:
        """The columns after the first, less what most rows have, in the same way."""
        Z = self.Z[:, 1:] - usual(self.Z[:, 1:], np.ones(len(self.Z), dtype=bool))
        return Sums(at_one_scale(Z).astype(np.float32), what="columns of Gram matrices")


class Gram(Release):
    """Gram matrices with their moments and squares, of one or several members.

    The reply has ``shape.grams`` (members × matrices × the packed upper triangle) or
    ``shape.factors`` (matrices R with RᵀR = G), ``moments`` (members × columns × outputs),
    ``squares`` (members × outputs) and ``few``, whether there are fewer rows than columns.

    An entry that rests on too few rows becomes 0, and the diagonal grows so that the matrix stays
    positive semidefinite; a column that rests on too few becomes the value most rows have, mostly
    0. Classes whose moments rest on too few rows share what they have together by their sizes. A
    class or label of too few rows has a matrix of zeros and its rows are left out. Factors leave as
    the matrices they are of: a number of R is no sum over rows, and may be what the other columns
    do not tell of a single one.

    ``members``: (client, ask) → the :class:`Member` of every member.
    """

    kind = "gram"
    says = "Gram matrices of several times as many rows as columns"

    def __init__(self, *entries: str, members: Callable[[Client, Any], Iterable[Member]]) -> None:
        super().__init__(*entries)
        self.members = members

    def judge(self, leaving: Leaving) -> Any:
        if leaving.limits.trusted:
            return leaving.reply
        memory = leaving.memory
        if leaving.holds("shape.factors"):
            R = leaving.get("shape.factors")
            upper = np.triu_indices(R.shape[-1])
            grams = (R.swapaxes(-1, -2) @ R)[..., upper[0], upper[1]]
            leaving.put("shape", {"grams": grams})
        sent = {entry: leaving.get(entry) for entry in ("moments", "squares", "shape.grams")}
        leaves: dict[str, list[FloatArray]] = {entry: [] for entry in sent}
        became: dict[str, list[IntArray]] = {entry: [] for entry in sent}
        new = rows = 0
        for t, member in enumerate(self.members(leaving.client, leaving.ask)):
            with threadpool_limits(1):  # many small products: threads wait longer than they work
                judged = _Judged(leaving, member)
            for entry, values in sent.items():
                leaves[entry].append(judged.leaves(entry, values[t]))
                became[entry].append(judged.outcome(entry))
            for kept in judged.left():
                new += memory.keep(kept, np.zeros(kept.shape))
            rows = len(member.Z)
        for entry in sent:
            leaving.put(entry, np.stack(leaves[entry]))
            leaving.outcome[entry] = np.stack(became[entry])
        leaving.put("few", 0)  # what leaves has more rows than columns
        if new:
            numbers = sum(np.size(leaving.get(entry)) for entry in sent)
            width = max(1, leaving.client.data.schema.width)
            memory.spend(numbers, leaving.limits.numbers * rows * width)
        return leaving.reply


class _Judged:
    """What is withheld of one member, and what leaves instead.

    ``matrices`` marks those that leave, ``entries`` (matrices × columns × columns) and ``moments``
    (outputs × columns) the numbers that do not, ``squares`` as well (outputs).
    """

    def __init__(self, leaving: Leaving, member: Member) -> None:
        self.least = leaving.limits.min_count
        self.persons: Persons = leaving.gate.persons(leaving.client, "train")
        self.sets = member.row_sets()
        self.matrices = self._matrices(leaving, member)
        if member.layout == "classes" and not self.matrices.all():
            member = member.only((member.weights[:, self.matrices] != 0).any(axis=1))
        self.member = member
        used = member.times > 0
        self.shift = usual(member.Z, used)
        self.shift[0] = 0.0
        self.Z = np.where(used[:, None], member.Z - self.shift, 0.0)
        self.base = member.bases()
        self.near = self._near_columns(leaving)
        self._find_small()
        self.changed = bool(
            self.entries.any()
            or self.moments.any()
            or self.squares.any()
            or not self.matrices.all()
        )

    # --- whole matrices and columns ---

    def _matrices(self, leaving: Leaving, member: Member) -> BoolArray:
        """Marks the matrices that rest on enough rows, alone and less any other."""
        used, sets = member.weights != 0, self.sets
        width = int((member.Z[member.times > 0] != 0).any(axis=0).sum())
        need = leaving.limits.gram_rows * width
        known, _ = leaving.memory.known(sets)
        kept = ~used.any(axis=0)
        for k in np.flatnonzero(~kept).tolist():
            rows, now = used[:, k], sets.right[:, [k]]
            others = np.concatenate([known, sets.right[:, :k][:, kept[:k]]], axis=1)
            apart = self.persons.count(others != now)
            left_out = self._distinct(member.Z, ~rows)
            kept[k] = (
                self._distinct(member.Z, rows) >= need
                and not ((apart > 0) & (apart < need)).any()
                and (left_out == 0 or left_out >= self.least)
            )
            if member.layout == "labels" and k:
                kept[k] &= self._distinct(member.Z, used[:, 0] & ~rows) >= need
        if member.layout == "classes":
            kept = self._not_by_subtraction(member, kept, need)
        needed = {"classes": (kept & used.any(axis=0)).any(), "labels": kept[0]}
        if not needed.get(member.layout, kept.all()):
            raise leaving.refuse(
                f"a Gram matrix of {width:,} columns needs {need:,.0f} distinct rows, since the "
                f"policy's `gram_rows` asks for {leaving.limits.gram_rows:g} per column, and as "
                "many by which it differs from others that left"
            )
        return np.asarray(kept, dtype=bool)

    def _distinct(self, Z: FloatArray, rows: BoolArray) -> int:
        """Distinct rows, and no more than persons."""
        persons = int(self.persons.count(rows[:, None])[0])
        return min(persons, len(np.unique(Z[rows], axis=0)))

    def _not_by_subtraction(self, member: Member, kept: BoolArray, need: float) -> BoolArray:
        """Withhold the next smallest class, where the total would give few rows back."""
        used = member.weights != 0
        sizes = used.sum(axis=0)
        while not kept.all() and (kept & (sizes > 0)).any():
            if self._distinct(member.Z, used[:, ~kept].any(axis=1)) >= need:
                break
            kept[np.where(kept & (sizes > 0), sizes, sizes.max() + 1).argmin()] = False
        return kept

    def _near_columns(self, leaving: Leaving) -> BoolArray:
        """Columns that differ from others, of this reply or of earlier ones, in a few rows."""
        times = self.member.times[:, None]
        rows = effective_of(self.Z * times, self.Z, self.persons).diagonal()
        large = np.flatnonzero((rows >= self.least) & np.isfinite(rows))
        Z = at_one_scale(self.Z[:, large]) * np.sqrt(times)
        near = np.zeros(len(rows), dtype=bool)
        pairs = too_near(Z, Z, self.least)
        for i, j in enumerate(large.tolist()):
            near[j] = pairs[i, :i][~near[large[:i]]].any()
        now = self.member.columns()
        known, _ = leaving.memory.known(now)
        near[1:] |= too_near(now.right, known, self.least).any(axis=1)
        others = too_near(now.right, now.right, self.least)
        for j in range(len(others)):  # as the next reply will be judged, if the same is asked again
            near[1 + j] |= others[j, :j][~near[1 : 1 + j]].any()
        return near

    def left(self) -> tuple[Sums, Sums]:
        """Which rows and columns left, for the memory: a later reply is compared with no others."""
        sets, columns = self.sets, self.member.columns()
        return (
            replace(sets, right=sets.right[:, self.matrices]),
            replace(columns, right=columns.right[:, ~self.near[1:]]),
        )

    # --- single entries ---

    def _find_small(self) -> None:
        member, least, persons = self.member, self.least, self.persons
        first = int(member.layout == "labels")  # matrices before those of the outputs
        rows = [self._entry_rows(k) for k in range(len(self.matrices))]
        told = member.moments - self.base[0] * member.times[:, None]
        sums = sums_of(told, self.Z, persons)
        moment_rows = np.minimum(
            effective_of(told, self.Z, persons), effective_of(member.moments, member.Z, persons)
        )
        if first:  # a row without the label tells as much as one with it
            without = (told == 0) * member.times[:, None]
            moment_rows = np.minimum(moment_rows, effective_of(without, self.Z, persons))
        self.moments = (moment_rows < least) | self.near
        self.entries = np.zeros((len(rows), *rows[0].shape), dtype=bool)
        self.entries |= self.near | self.near[:, None]
        self.entries[~self.matrices] = True
        depend: FloatArray | None = None
        while True:
            before = self.moments.sum() + self.entries.sum()
            for k in np.flatnonzero(self.matrices).tolist():
                known = self.entries[k]
                if member.layout in ("classes", "labels") and k >= first:
                    column = self.moments[k - first]  # Σ zⱼ of a class is in both
                    known = known | column | column[:, None]
                self.entries[k] = small_entries(
                    self.Z, member.weights[:, k], rows[k], least, persons, known
                )
            if member.layout == "classes" and self.entries.any():
                pairs = [sums_of(self.Z * w[:, None], self.Z, persons) for w in member.weights.T]
                absolute, squares = (np.stack([pair[i] for pair in pairs]) for i in (0, 1))
                self.entries = not_by_classes(self.entries, absolute, squares, least)
            dropped = self.entries.diagonal(axis1=1, axis2=2)
            if member.layout in ("one", "labels"):
                self.moments |= dropped[0]
            if member.layout != "one":
                self.moments |= dropped[first:]
            if self.moments.any():
                used = member.times > 0
                depend = dependencies(self.Z[used]) if depend is None else depend
                inner = -1
                while inner != (inner := int(self.moments.sum())):
                    self.moments = not_by_sums(
                        self.moments, told, self.Z, depend, moment_rows, least, persons
                    )
                    if member.exclusive:
                        self.moments = not_by_classes(self.moments, *sums, least)
            same = self.moments.sum() + self.entries.sum() == before
            if same or member.layout in ("one", "outputs"):  # matrices do not follow from moments
                break
        told = member.squares - self.base[1] * member.times[:, None]
        self.squares = effective_of(told, None, persons)[:, 0] < least
        self.squares |= effective_of(member.squares, None, persons)[:, 0] < least
        if member.base is not None:
            self.squares |= self.moments[:, 0]

    def _entry_rows(self, k: int) -> FloatArray:
        """The effective rows of every entry of a matrix, as it is and less what most rows have."""
        member, w = self.member, self.member.weights[:, [k]]
        weights = [w, member.weights[:, [0]] - w] if member.layout == "labels" and k else [w]
        rows = [
            effective_of(Z * weight, Z, self.persons)
            for weight in weights
            for Z in (member.Z, self.Z)
        ]
        return np.asarray(np.minimum.reduce(rows))

    # --- what leaves ---

    def leaves(self, entry: str, sent: FloatArray) -> FloatArray:
        """The numbers of an entry of the reply as they leave."""
        if not self.changed:
            return sent
        return {"moments": self._moments, "squares": self._squares}.get(entry, self._grams)(sent)

    def _grams(self, packed: FloatArray) -> FloatArray:
        upper = np.triu_indices(self.Z.shape[1])
        leaves = packed.copy()
        for k, (w, W) in enumerate(zip(self.member.weights.T, self.entries, strict=True)):
            if not self.matrices[k]:
                leaves[k] = 0.0
            elif W.any():
                G = np.where(W, 0.0, self.Z.T @ (self.Z * w[:, None]))
                G[np.diag_indices_from(G)] += moved(self.Z, w, W)
                crossed = np.outer(self.shift, G[0])
                G += crossed + crossed.T + G[0, 0] * np.outer(self.shift, self.shift)
                changed = W | np.diag(W.any(axis=0))
                leaves[k] = np.where(changed[upper], G[upper], packed[k])
        return leaves

    def _moments(self, sent: FloatArray) -> FloatArray:
        W, times = self.moments.T, self.member.times
        total = np.where(self._unknown(), 0.0, times @ self.Z)
        M = np.where(W, np.outer(total, self.base[0]), self.Z.T @ self.member.moments)
        if self.member.exclusive:  # what is withheld is known together
            told = self.Z.T @ (self.member.moments - self.base[0] * times[:, None])
            together = np.where(self._unknown(), 0.0, (told * W).sum(axis=1))
            sizes = np.where(W[0], together[0] / max(W[0].sum(), 1), told[0])
            shares = np.abs(sizes) * W
            M += together[:, None] * shares / np.maximum(shares.sum(axis=1), 1e-300)[:, None]
        M += np.outer(self.shift, M[0])
        same = ~(W | (W[0] & (self.shift != 0)[:, None]))
        return np.where(same & self._all_rows, sent, M)

    def _squares(self, sent: FloatArray) -> FloatArray:
        kept = sent if self._all_rows else self.member.squares.sum(axis=0)
        return np.where(self.squares, self.base[1] * self.member.times.sum(), kept)

    def _unknown(self) -> BoolArray:
        """Columns whose sum over all rows rests on too few, or is withheld from the matrices."""
        rows = effective_of(self.member.times[:, None], self.Z, self.persons)[0]
        dropped = self.entries.diagonal(axis1=1, axis2=2)
        gone = dropped[0] if self.member.layout in ("one", "labels") else dropped.all(axis=0)
        few: BoolArray = (rows < self.least) | self.near | gone
        return few

    @property
    def _all_rows(self) -> bool:
        return bool(self.matrices.all()) or self.member.layout != "classes"

    def outcome(self, entry: str) -> IntArray:
        """What became of every number; a diagonal is told by all that was moved to it."""
        if entry == "moments":
            return np.where(self.moments.T, 1 + self._unknown()[:, None], 0)
        if entry == "squares":
            return self.squares.astype(np.int64)
        dropped = self.entries.diagonal(axis1=1, axis2=2)
        gone = dropped[:, :, None].astype(np.int64) + dropped[:, None, :]
        became = np.where(self.entries, 1 + gone, 0)
        places = np.arange(self.Z.shape[1])
        became[:, places, places] = [
            [int.from_bytes(blake2b(line.tobytes(), digest_size=7).digest()) for line in W]
            for W in self.entries
        ]
        upper = np.triu_indices(self.Z.shape[1])
        return became[:, upper[0], upper[1]]
