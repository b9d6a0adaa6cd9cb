"""Real data sets by name: ``X, y, X_test, y_test = datasets.digits()``.

A loader reads, in this order, what scikit-learn brings along, a file in the folder
``$SOLERA_DATA``, a file in the user's cache, or a download from OpenML that is then kept in the
cache (``SOLERA_OFFLINE=1`` forbids it). It returns a :class:`Dataset`. Where the source has a test
set of its own, that is the test set; otherwise the share ``test`` of the rows is held out, drawn by
``seed`` within each class or label set. Class codes follow the order of ``class_names``.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from solera.core.errors import UsageError
from solera.core.schema import Feature
from solera.data import images, multilabel_sets, tables
from solera.data.activity_logs import XUETANGX, xuetangx
from solera.data.catalogue import described
from solera.data.dataset import Dataset, divided, held_out
from solera.data.files import DatasetInfo
from solera.data.images import IMAGES
from solera.data.leaf import LEAF, femnist, sentiment140, shakespeare
from solera.data.learning_analytics import (
    COURSES,
    OULAD,
    kddcup2015,
    oulad,
    xuetangx_actions16k,
)
from solera.data.multilabel_sets import MULTILABEL
from solera.data.particles import MINIBOONE, miniboone
from solera.data.tables import TABLES

__all__ = [
    "Dataset",
    "DatasetInfo",
    "adult",
    "available",
    "breast_cancer",
    "car",
    "carbon_nanotubes",
    "cifar10",
    "corel5k",
    "credit2",
    "diabetes",
    "digits",
    "drybean",
    "femnist",
    "german_credit",
    "heart_cleveland",
    "human_pseaac",
    "ildp",
    "kddcup2015",
    "load",
    "mediamill",
    "miniboone",
    "mnist",
    "ng20",
    "nursery",
    "optdigits",
    "oulad",
    "reuters_k500",
    "scene",
    "sentiment140",
    "shakespeare",
    "skin",
    "slashdot",
    "tmc2007_500",
    "wine",
    "xuetangx",
    "xuetangx_actions16k",
    "yahoo_education",
    "yahoo_education_brfs500",
    "yeast",
]


_BUNDLED = described("bundled", DatasetInfo)
_ANALYTICS = {info.name: info for info in (XUETANGX, COURSES, OULAD)}
_PARTICLES = {MINIBOONE.name: MINIBOONE}
_INFOS: dict[str, DatasetInfo] = {
    **_BUNDLED,
    **IMAGES,
    **TABLES,
    **MULTILABEL,
    **_ANALYTICS,
    **_PARTICLES,
    **LEAF,
}


def available() -> list[DatasetInfo]:
    """All data sets with size, target and licence; ``at_hand`` says which need no download."""
    return [
        images.best_at_hand(info) if isinstance(info, images.Images) else info
        for info in _INFOS.values()
    ]


def load(name: str, **options: Any) -> Dataset:
    """The data set of that name; ``options`` are those of its loader."""
    if name not in _INFOS:
        near = difflib.get_close_matches(name.lower(), _INFOS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "datasets.available() lists them"
        raise UsageError(f"there is no data set {name!r}", hint=hint)
    loader: Callable[..., Dataset] = globals()[name]
    known = inspect.signature(loader).parameters
    for option in options:
        if option not in known:
            raise UsageError(
                f"data set {name!r} has no option {option!r}",
                hint=f"it has {', '.join(known)}" if known else "it has none",
            )
    return loader(**options)


def _from_sklearn(name: str, test: float, seed: int) -> Dataset:
    import sklearn.datasets

    info = _BUNDLED[name]
    bunch = getattr(sklearn.datasets, f"load_{name}")()
    y = bunch.target.astype(np.int64 if info.target == "classes" else np.float64)
    marked = held_out(name, y, info.target, test, seed)
    features = [Feature(str(feature)) for feature in bunch.feature_names]
    class_names = tuple(map(str, bunch.get("target_names", ())))
    return divided(
        info, bunch.data, y, marked, features, source="scikit-learn", class_names=class_names
    )


def digits(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Handwritten digits: 1,797 images of 8 x 8 pixels with values 0 … 16, 10 classes.

    Bundled with scikit-learn; these are the test rows of :func:`optdigits` (UCI 80).
    """
    return _from_sklearn("digits", test, seed)


def breast_cancer(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Breast tumours: 569 rows, 30 measures of cell nuclei, malignant or benign.

    Wisconsin diagnostic set (UCI 17), bundled with scikit-learn.
    """
    return _from_sklearn("breast_cancer", test, seed)


def wine(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Italian wines: 178 rows, 13 chemical measures, 3 growers.

    UCI 109, bundled with scikit-learn.
    """
    return _from_sklearn("wine", test, seed)


def diabetes(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Diabetes progression in a year: 442 patients, 10 standardised measures, one number.

    Efron et al. (2004), bundled with scikit-learn.
    """
    return _from_sklearn("diabetes", test, seed)


def mnist(*, flat: bool = True) -> Dataset:
    """Handwritten digits: 60,000 + 10,000 grey images of 28 x 28, float32 in [0, 1], 10 classes.

    LeCun & Cortes. ``flat=False`` keeps the images as (rows, 28, 28).
    """
    return images.load("mnist", flat=flat)


def cifar10(*, flat: bool = True) -> Dataset:
    """Colour photographs: 50,000 + 10,000 of 32 x 32 x 3, float32 in [0, 1], 10 classes.

    Krizhevsky (2009). ``flat=False`` keeps the images as (rows, 32, 32, 3). Where only
    ``cifar10_subset.npz`` is at hand (the first 10,000 training and 1,000 test images) that is
    read, and the title says so.
    """
    return images.load("cifar10", flat=flat)


def nursery(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Applications to nursery schools: 12,960 rows, 8 categorical features, 5 classes.

    UCI 76. Every combination of the categories occurs once; class ``recommend`` has two rows.
    """
    return tables.load("nursery", test, seed)


def car(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Car evaluation: 1,728 rows, 6 categorical features, 4 classes.

    UCI 19. Every combination of the categories occurs once.
    """
    return tables.load("car", test, seed)


def adult() -> Dataset:
    """Income above 50,000 dollars in the 1994 census: 32,561 + 16,281 rows, 14 features, 2 classes.

    UCI 2. Eight features are categorical; 6,465 cells are missing ("?" in the source).
    """
    return tables.load("adult")


def credit2(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Default of credit-card clients in Taiwan: 30,000 rows, 23 features, 2 classes.

    UCI 350, without its ID column. Sex, education and marriage are categorical and keep the
    undocumented codes of the source.
    """
    return tables.load("credit2", test, seed)


def ildp(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Indian liver patients (ILPD): 583 rows, 10 features, patient or not; 4 cells missing.

    UCI 225.
    """
    return tables.load("ildp", test, seed)


def drybean(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Dry beans: 13,611 grains, 16 measures of their shape, 7 varieties.

    UCI 602.
    """
    return tables.load("drybean", test, seed)


def carbon_nanotubes(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Atomic coordinates in carbon nanotubes: 10,721 rows, 5 inputs, 3 numbers to predict.

    UCI 448: chiral indices and initial coordinates; the calculated coordinates are the target.
    """
    return tables.load("carbon_nanotubes", test, seed)


def skin(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Skin or not, by colour: 245,057 pixels, 3 features (blue, green, red), 2 classes.

    UCI 229. Only 51,444 rows are distinct, so held-out rows mostly repeat training rows.
    """
    return tables.load("skin", test, seed)


def optdigits() -> Dataset:
    """Handwritten digits: 3,823 + 1,797 images of 8 x 8 pixels with values 0 … 16, 10 classes.

    UCI 80; the writers of the test rows wrote none of the training rows.
    """
    return tables.load("optdigits")


def heart_cleveland(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Heart disease in Cleveland: 303 patients, 13 features, 5 degrees (0 is healthy).

    UCI 45. Seven features are categorical; 6 cells are missing.
    """
    return tables.load("heart_cleveland", test, seed)


def german_credit(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """German credit risk: 1,000 rows, 20 features (13 categorical), good or bad.

    UCI 144; categories keep the codes of the source (A11, A12, …).
    """
    return tables.load("german_credit", test, seed)


def scene(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Photographs of scenes: 2,407 rows, 294 colour features, 6 labels.

    Boutell et al. (2004), MULAN.
    """
    return multilabel_sets.load("scene", test, seed)


def yeast(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Functions of yeast genes: 2,417 rows, 103 features, 14 labels.

    Elisseeff & Weston (2001), MULAN.
    """
    return multilabel_sets.load("yeast", test, seed)


def slashdot(*, dense: bool = False, test: float = 0.25, seed: int = 0) -> Dataset:
    """Slashdot articles: 3,782 rows, 1,079 words (sparse), 22 labels, two of which never occur.

    Read (2010), MEKA.
    """
    return multilabel_sets.load("slashdot", test, seed, dense=dense)


def reuters_k500(*, dense: bool = False, test: float = 0.25, seed: int = 0) -> Dataset:
    """Reuters news: 6,000 rows, 500 weighted words (sparse), 103 labels, four never occur.

    Read (2010), MEKA.
    """
    return multilabel_sets.load("reuters_k500", test, seed, dense=dense)


def ng20(*, dense: bool = False, test: float = 0.25, seed: int = 0) -> Dataset:
    """20 Newsgroups: 19,300 posts, 1,006 words (sparse), 20 labels.

    Lang (1995), MEKA.
    """
    return multilabel_sets.load("ng20", test, seed, dense=dense)


def tmc2007_500(
    *, keep_copies: bool = False, dense: bool = False, test: float = 0.25, seed: int = 0
) -> Dataset:
    """Aviation safety reports: 21,519 rows, 500 words (sparse), 22 labels.

    Srivastava & Zane-Ulman (2005), MULAN. The file has 7,077 more rows whose words all copy
    earlier rows: held-out rows would leak. ``keep_copies=True`` reads them too.
    """
    rows = None if keep_copies else MULTILABEL["tmc2007_500"].rows
    return multilabel_sets.load("tmc2007_500", test, seed, dense=dense, rows=rows)


def corel5k(*, dense: bool = False, test: float = 0.25, seed: int = 0) -> Dataset:
    """Corel photographs: 5,000 rows, 499 image regions (sparse), 374 labels.

    Duygulu et al. (2002), MULAN.
    """
    return multilabel_sets.load("corel5k", test, seed, dense=dense)


def yahoo_education(*, dense: bool = False, test: float = 0.25, seed: int = 0) -> Dataset:
    """Web pages on education: 12,030 rows, 27,534 word counts (sparse), 33 labels.

    Ueda & Saito (2002), Yahoo! directory.
    """
    return multilabel_sets.load("yahoo_education", test, seed, dense=dense)


def yahoo_education_brfs500(*, dense: bool = False, test: float = 0.25, seed: int = 0) -> Dataset:
    """:func:`yahoo_education` with the 500 words that feature selection kept; 33 labels."""
    return multilabel_sets.load("yahoo_education_brfs500", test, seed, dense=dense)


def mediamill(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Concepts in video frames: 43,907 rows, 120 features, 101 labels.

    Snoek et al. (2006); read from ``mediamill.arff`` as Mulan has it. There is no download.
    """
    return multilabel_sets.load("mediamill", test, seed)


def human_pseaac(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Places of human proteins in the cell: 3,106 rows, 440 features, 14 labels.

    Xu et al. (2016); read from ``HumanPseAAC.arff`` as KDIS publishes it. There is no download.
    """
    return multilabel_sets.load("human_pseaac", test, seed)
