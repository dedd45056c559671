"""The results in plain words: every sentence follows from rows, none is written beforehand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trace_jax.report.evaluation import ALL, Condition, Evaluation
from trace_jax.report.tables import HEADLINES, TASKS, number, signed
from trace_jax.types import LEVELS, PRISTINE

NOTICE = (
    "Every match here is an inference from incomplete physical evidence and can be wrong, the more "
    "so the worse the damage. It needs a human's judgement, and it is no evidence for legal or "
    "insurance purposes. {pictures}; check on data of your own before any use in the field. (After "
    "the paper's impact statement.)"
)


# Tasks answered in words about what an object was.
ANSWERED = tuple(key for key in HEADLINES if key[0] in ("material", "description", "function"))


@dataclasses.dataclass(frozen=True)
class Card:
    """A headline number: label, the number, a line below."""

    label: str
    figure: str
    below: str


def notice(results: Evaluation) -> str:
    """What no reader may overlook."""
    crops = "The crops are of real fires, the pictures they are matched with may be synthetic"
    return NOTICE.format(pictures=crops if results.crops else "The pictures are synthetic")


def setting(results: Evaluation) -> str:
    """What was asked of whom."""
    meta = results.meta
    if "setting" in meta:  # an evaluation that asks otherwise says how
        return meta["setting"]
    burnt = sum(meta["queries"][level] for level in LEVELS if level in meta["queries"])
    text = (
        f"{burnt:,} burnt images of {meta['identities']:,} objects. "
        f"Split “{meta['split']}” of {meta['data']['name']}: "
    )
    if meta["split"] == "test":
        text += "none of these objects is in the training or validation split. "
    else:
        text += "choices may have been made on it; only test numbers are unbiased. "
    if meta["gallery_size"]:
        text += (
            f"For each burnt image the host looks for the same object among "
            f"{meta['gallery_size']:,} pristine images; a guess would be right "
            f"{100 / meta['gallery_size']:.2g}% of the time."
        )
    return text


def cards(results: Evaluation) -> list[Card]:
    """The headline numbers, those of each FRM together."""
    found = []
    for frm in results.of_kind("frm", "finetuned"):
        base = results.row("detection", "base", ALL, "map")
        own = results.row("detection", frm.name, ALL, "map")
        one = results.comparison("detection", frm.name, "base", ALL, "map")
        if base and own and one:
            share = one["relative"]
            found.append(
                Card(
                    f"{frm.title}: mAP@0.5:0.95",
                    f"{number('map', base['value'])} → {number('map', own['value'])}",
                    f"{signed('map', one['difference'])} points{_between(one)}"
                    + (
                        "" if share is None else f"; {signed('mse', share, relative=True)} relative"
                    ),
                )
            )
    for frm in results.of_kind("frm"):
        base = results.row("retrieval", "base", ALL, "r_at_1")
        own = results.row("retrieval", frm.name, ALL, "r_at_1")
        gain = results.row("retrieval", frm.name, ALL, "r_at_1_gain")
        if base and own and gain:
            found.append(
                Card(
                    f"{frm.title}: right {results.target} first",
                    f"{number('r_at_1', base['value'])} → {number('r_at_1', own['value'])}%",
                    f"{signed('r_at_1', gain['value'])} points{_between(gain)}",
                )
            )
        mse = results.comparison("feature_recovery", frm.name, "base", ALL, "mse")
        if mse and mse["relative"] is not None:
            found.append(
                Card(
                    f"{frm.title}: feature error",
                    signed("mse", mse["relative"], relative=True),
                    "mean squared error against base"
                    if mse["relative_low"] is None
                    else f"MSE against base (95%: {signed('mse', mse['relative_low'], True)} to "
                    f"{signed('mse', mse['relative_high'], True)})",
                )
            )
        for task, metric in ANSWERED:
            base = results.row(task, "base", ALL, metric)
            own = results.row(task, frm.name, ALL, metric)
            one = results.comparison(task, frm.name, "base", ALL, metric)
            if base and own and one and metric != "identity_accuracy":
                found.append(
                    Card(
                        f"{frm.title}: {TASKS[task].lower()}",
                        f"{number(metric, base['value'])} → {number(metric, own['value'])}",
                        f"{signed(metric, one['difference'])} points{_between(one)}",
                    )
                )
    return found


def story(results: Evaluation) -> list[tuple[str, list[str]]]:
    """The results in sentences: (whom they are about, sentences) by paragraph."""
    found = [("", _damage(results))]
    for frm in results.of_kind("frm", "finetuned"):
        own = [
            *_detection(results, frm),
            *_retrieval(results, frm),
            *_controls(results, frm),
            *_features(results, frm),
            *_answers(results, frm),
            *_harm(results, frm),
        ]
        found.append((frm.title, own))
    return [(title, own) for title, own in found if own]


def ceiling(results: Evaluation) -> str:
    """Which image condition "pristine" asks with."""
    if "ceiling" in results.meta:
        return results.meta["ceiling"]
    if results.meta["pristine_view"] == 1:
        return (
            "Condition Pristine asks with a second pristine image from another camera: the honest "
            "ceiling of this host. Feature recovery compares the reference view with itself there "
            "(0 and 1 by construction), since another camera's tokens do not align."
        )
    return (
        "The data has no second pristine view, so condition Pristine asks with the gallery's own "
        "image: 100% by construction, as in the paper."
    )


def verdict(low: float | None, high: float | None, better: str, worse: str) -> str:
    """What an interval around a difference allows to say; "clear" means it leaves out zero."""
    if low is None or high is None:
        return "too few objects to say more"
    if low > 0:
        return better
    if high < 0:
        return worse
    return "no clear difference"


def _damage(results: Evaluation) -> list[str]:
    levels = [s for s in LEVELS if results.row("retrieval", "base", s, "r_at_1")]
    if len(levels) < 2:
        return []
    first, last = (results.row("retrieval", "base", s, "r_at_1") for s in (levels[0], levels[-1]))
    assert first and last
    # Crops of different levels show different objects, so their difference is not damage's alone.
    opening = (
        f"The frozen host finds the right {results.target} for"
        if results.crops
        else "Damage hides objects from the frozen host: it finds"
    )
    return [
        f"{opening} {_percent(first)} at {levels[0]} and {_percent(last)} at {levels[-1]}. Below, "
        "a difference is called clear where its 95% interval leaves out zero."
    ]


def _detection(results: Evaluation, frm: Condition) -> list[str]:
    """mAP against base, and what becomes of unburnt scenes."""
    own = results.row("detection", frm.name, ALL, "map")
    one = results.comparison("detection", frm.name, "base", ALL, "map")
    if not own or not one:
        return []
    found = [
        f"It reaches mAP {number('map', own['value'])} over all levels, "
        f"{signed('map', one['difference'])} points against base{_between(one)}: "
        f"{verdict(one['low'], one['high'], 'a clear gain', 'a clear loss')}."
    ]
    harm = results.comparison("detection", frm.name, "base", PRISTINE, "map")
    if harm:
        found.append(
            f"On unburnt scenes it changes mAP by {signed('map', harm['difference'])} points"
            f"{_between(harm)}."
        )
    return found


def _retrieval(results: Evaluation, frm: Condition) -> list[str]:
    gain = results.row("retrieval", frm.name, ALL, "r_at_1_gain")
    own = results.row("retrieval", frm.name, ALL, "r_at_1")
    if not gain or not own:
        return []
    return [
        f"It finds {_percent(own)} over all levels, {signed('r_at_1', gain['value'])} points "
        f"against base{_between(gain)}: "
        f"{verdict(gain['low'], gain['high'], 'a clear gain', 'a clear loss')}."
    ]


def _controls(results: Evaluation, frm: Condition) -> list[str]:
    parts = []
    for control in results.of_kind("control"):
        row = results.row("retrieval", frm.name, ALL, f"r_at_1_gain_over_{control.name}")
        if row:
            parts.append(
                f"{signed('r_at_1', row['value'])} points over {control.title}{_between(row)}, "
                f"{verdict(row['low'], row['high'], 'a clear gain', 'a clear loss')}"
            )
    return [f"Against the controls, which know nothing of objects: {'; '.join(parts)}."] * bool(
        parts
    )


def _features(results: Evaluation, frm: Condition) -> list[str]:
    mse = results.comparison("feature_recovery", frm.name, "base", ALL, "mse")
    if not mse or mse["relative"] is None:
        return []
    share = f"{abs(100 * mse['relative']):.1f}%"
    text = f"Its features lie {share} {'below' if mse['relative'] < 0 else 'above'} base in MSE"
    controls = results.of_kind("control")
    beaten = [
        c.title
        for c in controls
        if (one := results.comparison("feature_recovery", frm.name, c.name, ALL, "mse"))
        and one["high"] is not None
        and one["high"] < 0
    ]
    if beaten:
        text += f", and clearly below {' and '.join(beaten)}"
    elif controls:
        text += ", but not clearly below any control"
    return [text + "."]


def _answers(results: Evaluation, frm: Condition) -> list[str]:
    """What answers in words gain, task by task, and what becomes of questions about the damage."""
    parts = []
    for task, metric in ANSWERED:
        row = results.row(task, frm.name, ALL, metric)
        one = results.comparison(task, frm.name, "base", ALL, metric)
        if row and one:
            parts.append(
                f"{_named(task, metric)} {number(metric, row['value'])} "
                f"({signed(metric, one['difference'])}{_between(one, ', 95%: ', '')}), "
                f"{verdict(one['low'], one['high'], 'a clear gain', 'a clear loss')}"
            )
    found = [f"In words, against base: {'; '.join(parts)}."] if parts else []
    damage = results.comparison("damage", frm.name, "base", ALL, "accuracy")
    if damage:
        gate = results.meta["answers"]["gate"]
        found.append(
            f"Questions about the damage (gate “{gate}”): "
            f"{signed('accuracy', damage['difference'])} "
            f"points{_between(damage)}."
        )
    return found


def _named(task: str, metric: str) -> str:
    return "its identity" if metric == "identity_accuracy" else TASKS[task].lower()


def _harm(results: Evaluation, frm: Condition) -> list[str]:
    row = results.row("retrieval", frm.name, PRISTINE, "r_at_1_gain")
    own = results.row("retrieval", frm.name, PRISTINE, "r_at_1")
    if not row or not own:
        return []
    return [
        f"An unburnt image passed through it is still matched {_percent(own)} of the time "
        f"({signed('r_at_1', row['value'])} points against leaving it alone)."
    ]


def _percent(row: Mapping[str, Any]) -> str:
    return f"{number('r_at_1', row['value'])}%"


def _between(row: Mapping[str, Any], opening: str = " (95%: ", end: str = ")") -> str:
    """The interval of a share's change, in points."""
    if row["low"] is None:
        return ""
    return f"{opening}{signed('r_at_1', row['low'])} to {signed('r_at_1', row['high'])}{end}"
