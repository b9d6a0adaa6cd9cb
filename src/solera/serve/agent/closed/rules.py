"""What an owner's policy and people say of texts."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from solera.core.component import build
from solera.core.errors import PolicyRefusal, SoleraError
from solera.learn.closed import check_bases, check_learners, check_policy, check_price
from solera.privacy.dp.sums import at_the_sum
from solera.serve.agent import home
from solera.serve.agent.approvals import Approvals, Decision
from solera.serve.agent.closed.price import price_of_text
from solera.serve.agent.closed.store import OwnJob
from solera.serve.agent.epoch_files import EpochFiles, fetch_agreed, fetch_epoch
from solera.serve.agent.ledger import Ledger, ledger_of
from solera.serve.agent.notify import notify
from solera.serve.agent.policy import OwnerPolicy
from solera.serve.agent.withdrawn import FILE as WITHDRAWN
from solera.serve.closed import NewVerdict
from solera.serve.closed_words import name_of, text_words
from solera.serve.connection import Connection
from solera.trust.board.atoms import atoms_text
from solera.trust.board.text import JobText, canonical, parse
from solera.trust.epoch.epoch import Epoch

_LOOK_SECONDS = 1.0
"""How soon a job that runs hears of a decision, or of another policy."""


class OwnerRules:
    """The policy of now, and the decisions in the client's folder."""

    def __init__(self, folder: Path, place: home.Place, policy: Callable[[], OwnerPolicy]) -> None:
        self._folder, self._place, self._policy = folder, place, policy
        self._looked: dict[str, tuple[float, str | None]] = {}

    def epoch(self, hash: str, connection: Connection | None = None) -> Epoch | None:
        """The epoch of this hash, if it is the newest that this owner and all others signed.

        Or the one that they have signed before its atoms are found.
        """
        files = EpochFiles(self._folder)
        for look, fetch in ((files.current, fetch_epoch), (files.agreed, fetch_agreed)):
            signed = look()
            if connection is not None and (signed is None or signed.epoch.hash.hex() != hash):
                signed = fetch(self._folder, connection, self._place.federation)
            if signed is not None and signed.epoch.hash.hex() == hash:
                return signed.epoch
        return None

    def verdict(self, job: OwnJob, text: JobText, epoch: Epoch) -> NewVerdict | None:
        """What is said of a text; None while people have yet to decide."""
        policy = self._policy()
        if reason := refusal(policy, text, epoch):
            return NewVerdict("refused", reason=reason)
        if text.kind == "atoms":
            return NewVerdict("approved")
        if not policy.approval.is_needed(text.kind):
            return self._reserved(job, text, epoch)
        last = self._last(job)
        if last is None or last.verdict == "withdrawn":
            return None
        if last.verdict == "rejected":
            return NewVerdict("refused", last.person, last.reason)
        return self._reserved(job, text, epoch, last.person) if self._holds(last) else None

    def _reserved(self, job: OwnJob, text: JobText, epoch: Epoch, person: str = "") -> NewVerdict:
        """Approval, once what the whole job is worth is put down; refusal beyond the budget."""
        price = price_of_text(canonical(text), len(epoch.owners))
        budget = self._policy().rules.budget
        if price is None or budget is None:
            return NewVerdict("approved", person)
        what = f"closed job, {at_the_sum(price.honest_peers)}"
        try:
            with closing(Ledger(ledger_of(self._folder, self._policy()))) as ledger:
                ledger.begin(name_of(text))
                ledger.spend(job.jid, what, price.events, *budget)
        except PolicyRefusal as error:
            return NewVerdict("refused", reason=str(error))
        return NewVerdict("approved", person)

    def give_back(self, jid: str) -> None:
        """Take back what a job was to spend of which nothing has left."""
        path = ledger_of(self._folder, self._policy())
        if path.exists():
            with closing(Ledger(path)) as ledger:
                ledger.give_back(jid)

    def objection(self, job: OwnJob) -> str | None:
        """Why a job that runs may not go on, looked up now and then; in closed hours it waits."""
        looked, found = self._looked.get(job.jid, (float("-inf"), None))
        if time.monotonic() - looked < _LOOK_SECONDS:
            return found
        found = self._objection(job)
        self._looked[job.jid] = (time.monotonic(), found)
        return found

    def _objection(self, job: OwnJob) -> str | None:
        policy = self._policy()
        while policy.hours is not None and datetime.now().time() not in policy.hours:
            time.sleep(_LOOK_SECONDS)
            policy = self._policy()
        withdrawn = self._folder / WITHDRAWN
        if withdrawn.exists() and withdrawn.stat().st_mtime > job.since:
            return "a person was left out of the rows since"
        last = self._last(job)
        if last is not None and last.verdict != "approved":
            return f"{last.person} has {last.verdict} it: {last.reason}"
        if last is not None and not self._holds(last):
            return "the approval has ended"
        epoch = self.epoch(job.epoch)
        if epoch is None:
            return "its epoch is over"
        return refusal(policy, parse(job.text), epoch)

    def told(self, job: OwnJob, text: JobText) -> None:
        """Tell people of a text that waits for them."""
        policy = self._policy()
        if text.kind != "atoms" and policy.approval.is_needed(text.kind):
            here = {"federation": self._place.federation, "client": self._place.name}
            about = {"hash": job.jid, "job": name_of(text), "owner": text.researcher}
            notify(policy.notify, "held", **here, **about, description=text_words(text))

    def _last(self, job: OwnJob) -> Decision | None:
        approvers = self._policy().approval.approvers
        return Approvals(self._folder / home.APPROVALS, approvers).last(job.jid)

    def _holds(self, approval: Decision) -> bool:
        return datetime.now(UTC) < approval.ends(self._policy().approval.lasts(None))


def refusal(policy: OwnerPolicy, text: JobText, epoch: Epoch) -> str | None:
    """Why a policy refuses a text, from the text and the dictionary alone."""
    rules = policy.rules
    if text.kind == "atoms":
        if epoch.atoms is not None or canonical(text) != atoms_text(text.repeat):
            return "this is not the text by which the atoms of an epoch are found"
    elif epoch.atoms is None:
        return "the atoms of this epoch are yet to be found"
    elif text.kind not in rules.jobs:
        return f"the policy allows no {text.kind}: jobs = {list(rules.jobs)}"
    if len(epoch.owners) - 1 < rules.min_peers:
        return f"the policy wants at least {rules.min_peers} other owners in a sum"
    if epoch.min_count < rules.min_count:
        return f"the policy tells nothing of fewer than {rules.min_count} persons"
    if allowed := policy.data.columns:
        schema = epoch.dictionary.schema(text.columns, text.target or None)
        hidden = [f.name for f in schema.features if f.name not in allowed]
        if hidden:
            return f"[data] columns of the policy does not hold {', '.join(hidden[:5])}"
    if text.kind != "training":
        return None
    try:
        schema = epoch.dictionary.schema(text.columns, text.target)
        schema.with_positive(text.positive or None)
        learners = [build(learner) for learner in text.learners]
        check_learners(learners)
        check_bases(learners, epoch.dictionary.bases)
        for learner in learners:
            check_policy(learner, rules)
        owners = len(epoch.owners)
        check_price(price_of_text(canonical(text), owners), rules, owners)
    except SoleraError as error:
        return str(error)
    return None
