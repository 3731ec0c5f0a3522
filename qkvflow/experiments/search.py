"""What a sweep tries next, and what it chooses: functions of the losses that are known.

One setting after the other, each at the best of those before it (a coordinate search):

1. all learning rates, at the arm's own settings, and beyond an end as often as the plan widens it;
2. every other setting in its order: its values, at the best learning rate and settings so far;
3. where that chose other settings: the learning rates beside the best one, until it is between two.

With r rates and n values of each of k settings these are at most 2 r - 1 + k (n - 1) runs, not r n^k.
What depends on two settings at once may be missed; a grid would find it, at a price nobody would pay.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import Choice, Finished, Record, Swept
from qkvflow.experiments.sweep import Values, setting_of


class Try(NamedTuple):
    """A learning rate, and the values of the other settings that are swept, in their order."""

    rate: float
    settings: tuple[float, ...] = ()


Losses = Mapping[Try, float | None]
"""Of what was tried, the mean over seeds; None where a run failed."""


@dataclass(frozen=True)
class Search:
    """What the sweep of an arm may try."""

    rates: tuple[float, ...]
    widen: int
    values: Values
    own: tuple[float, ...]
    """What its runs have of these settings, where nothing is said."""

    @staticmethod
    def of(plan: Plan, arm: str) -> "Search":
        """That of an arm of a plan that has a sweep."""
        assert plan.sweep is not None
        this = plan.arm(arm)
        values = plan.swept(this)
        own = tuple(setting_of(this.run.to_dict(), name) for name in values)
        return Search(this.learning_rates or plan.sweep.learning_rates, plan.sweep.widen, values, own)

    def changed(self, tried: Try) -> dict[str, float]:
        """The settings that are not the arm's own, by name."""
        given = zip(self.values, tried.settings, self.own, strict=True)
        return {name: value for name, value, own in given if value != own}

    def ahead(self, losses: Losses) -> list[Try]:
        """What is to be tried next; at the end nothing."""
        if missing := _missing([Try(rate, self.own) for rate in self.rates], losses):
            return missing
        first = _rates_at(self.own, losses)
        if first.learning_rate is None:
            return []
        if first.beyond is not None and len(first.sweep) < len(self.rates) + self.widen:
            return [Try(first.beyond, self.own)]
        settings, _, missing = self._settings(first.learning_rate, losses)
        return missing or _missing(_beside(first, settings, losses), losses)

    def chosen(self, losses: Losses) -> Choice:
        """The best, as far as it is known."""
        first = _rates_at(self.own, losses)
        if first.learning_rate is None or not self.values:
            return first
        settings, swept, _ = self._settings(first.learning_rate, losses)
        best = _rates_at(settings, losses)
        return Choice(best.learning_rate, best.inside, best.sweep, first.sweep, swept)

    def _settings(
        self, rate: float, losses: Losses
    ) -> tuple[tuple[float, ...], tuple[Swept, ...], list[Try]]:
        """The best settings at a rate, how they were found, and what is to be tried for the next."""
        settings, swept = self.own, list[Swept]()
        for i, (name, values) in enumerate(self.values.items()):
            tries = [Try(rate, (*settings[:i], value, *settings[i + 1 :])) for value in values]
            if missing := _missing(tries, losses):
                return settings, tuple(swept), missing
            swept.append(Swept.of(name, [(values[j], losses[each]) for j, each in enumerate(tries)]))
            settings = (*settings[:i], swept[-1].value, *settings[i + 1 :])
        return settings, tuple(swept), []


def _missing(tries: Iterable[Try], losses: Losses) -> list[Try]:
    return [each for each in tries if each not in losses]


def _rates_at(settings: tuple[float, ...], losses: Losses) -> Choice:
    """The best of the rates that were tried at these settings."""
    return Choice.of((each.rate, loss) for each, loss in losses.items() if each.settings == settings)


def _beside(first: Choice, settings: tuple[float, ...], losses: Losses) -> list[Try]:
    """The rates beside the best one of those that were tried at these settings."""
    rates = [rate for rate, _ in first.sweep]
    best = _rates_at(settings, losses).learning_rate
    place = rates.index(best) if best is not None else 0
    return [Try(rate, settings) for rate in rates[max(place - 1, 0) : place + 2]]


def losses_of(records: Sequence[Record], values: Values) -> dict[Try, float | None]:
    """The losses, or wrong answers, of the runs of an arm's sweep; a rate has the mean of its seeds.

    What failed with one seed has none.
    """
    found: dict[Try, list[float | None]] = {}
    for record in records:
        tried = Try(record.learning_rate, tuple(setting_of(record.run, name) for name in values))
        loss = record.valid.judged_by if isinstance(record, Finished) else None
        found.setdefault(tried, []).append(loss)
    return {tried: _mean(losses) for tried, losses in found.items()}


def _mean(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return sum(known) / len(known) if len(known) == len(losses) else None


def chosen(plan: Plan, records: Sequence[Record]) -> dict[str, Choice]:
    """The best learning rate and settings of each arm of which these are the runs of the sweep."""
    of_arm: dict[str, list[Record]] = {}
    for record in records:
        of_arm.setdefault(record.arm, []).append(record)
    return {arm: _chosen(Search.of(plan, arm), of) for arm, of in of_arm.items()}


def _chosen(search: Search, records: Sequence[Record]) -> Choice:
    return search.chosen(losses_of(records, search.values))
