"""Adult and Credit2 in the categories of the trees thesis's program, which its text leaves out.

Where the program writes an interval, it is open below and closed above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from solera.core.clients import FloatArray
from solera.core.schema import Feature
from solera.data import datasets
from solera.data.dataset import Dataset

Groups = Mapping[str, str]
"""The categories that fall into each group, between spaces; what is left out is "others"."""
_AGE, _EDUCATION, _HOURS = (18, 40, 80), (5, 10), (20, 40)
_WORK: Groups = {
    "government": "Federal-gov Local-gov State-gov",
    "self": "Self-emp-inc Self-emp-not-inc",
}
_SCHOOL: Groups = {  # high school counts as "grad", with masters and doctors
    "non_college": "1st-4th 5th-6th 7th-8th 9th 10th 11th 12th",
    "assoc": "Assoc-acdm Assoc-voc",
    "college": "Some-college Bachelors",
    "grad": "HS-grad Masters Doctorate",
}
_COUNTRY: Groups = {
    "north america": "United-States Canada Outlying-US(Guam-USVI-etc)",
    "south america": "Columbia Cuba Dominican-Republic Ecuador El-Salvador Guatemala Haiti Honduras"
    " Jamaica Mexico Nicaragua Peru Puerto-Rico Trinadad&Tobago",
    "europe": "England France Germany Greece Holand-Netherlands Hungary Ireland Italy Poland"
    " Portugal Scotland Yugoslavia",
    "asia": "Cambodia China Hong India Iran Japan Laos Philippines South Taiwan Thailand Vietnam",
}
_LIMITS, _QUARTERS, _DELAYS = 10, (0.25, 0.5, 0.75), range(-2, 10)

Column = tuple[Feature, FloatArray]


def categorised(name: str) -> Dataset:
    """A set of the thesis as its program gives it to ID3; Nursery and Car have categories."""
    dataset = datasets.load(name)
    make = {"adult": _adult, "credit2": _credit2}.get(name)
    if make is None:
        return dataset
    X, y = dataset.all
    columns = make({f.name: (f, X[:, i]) for i, f in enumerate(dataset.schema.features)})
    schema = replace(dataset.schema, features=tuple(feature for feature, _ in columns))
    codes = np.column_stack([values for _, values in columns])
    return replace(dataset, X=codes, y=y, X_test=codes[:0], y_test=y[:0], schema=schema, groups={})


def _adult(by_name: Mapping[str, Column]) -> list[Column]:
    """Without fnlwgt, capital gains and losses; what is missing is a category."""
    whole = ("marital-status", "occupation", "relationship", "race", "sex")
    return [
        _cut(by_name["age"], _AGE),
        _grouped(by_name["workclass"], _WORK),
        _grouped(by_name["education"], _SCHOOL),
        _cut(by_name["education-num"], _EDUCATION),
        *(_with_missing(by_name[name]) for name in whole),
        _cut(by_name["hours-per-week"], _HOURS),
        _grouped(by_name["native-country"], _COUNTRY),
    ]


def _credit2(by_name: Mapping[str, Column]) -> list[Column]:
    """Ten equal intervals of the limit, quarters of the amounts, every delay a category."""
    limit = by_name["LIMIT_BAL"][1]
    width = np.linspace(limit.min(), limit.max(), _LIMITS + 1)[1:-1]
    columns = [
        _cut(by_name["LIMIT_BAL"], width),
        by_name["SEX"],
        _grouped(by_name["EDUCATION"], {"graduate": "1", "university": "2", "high school": "3"}),
        _grouped(by_name["MARRIAGE"], {"married": "1", "single": "2"}),
        _cut(by_name["AGE"], _AGE),
    ]
    for name, (feature, values) in by_name.items():
        if name.startswith("PAY_") and not name.startswith("PAY_AMT"):
            columns.append(_cut((feature, values), list(_DELAYS)[:-1]))
        elif "_AMT" in name:
            columns.append(_cut((feature, values), np.quantile(values, _QUARTERS)))
    return columns


def _cut(column: Column, edges: Sequence[float] | FloatArray) -> Column:
    feature, values = column
    names = (*(f"≤ {edge:g}" for edge in edges), f"> {edges[-1]:g}")
    codes = np.digitize(values, edges, right=True).astype(float)
    return Feature(feature.name, "categorical", names), codes


def _grouped(column: Column, groups: Groups) -> Column:
    feature, values = column
    members = {word: i for i, words in enumerate(groups.values()) for word in words.split()}
    others = len(groups)
    table = np.array([members.get(name, others) for name in feature.categories] + [others])
    codes = table[np.where(np.isnan(values), len(feature.categories), values).astype(int)]
    return Feature(feature.name, "categorical", (*groups, "others")), codes.astype(float)


def _with_missing(column: Column) -> Column:
    feature, values = column
    codes = np.where(np.isnan(values), len(feature.categories), values)
    if not np.isnan(values).any():
        return column
    return Feature(feature.name, "categorical", (*feature.categories, "?")), codes
