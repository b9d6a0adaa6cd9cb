"""Loaders of real data: counts as published, and what happens when a file is not there."""

from __future__ import annotations

import ast
import gzip
import inspect
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest

from solera.core.errors import DataError, DatasetUnavailable, MissingExtra, UsageError
from solera.data import adapters, dataset, datasets, files, images, multilabel_sets, tables
from solera.data.dataset import held_out

REPOSITORY = Path(__file__).resolve().parents[2]
CLASSES = {
    "nursery": [4320, 4266, 2, 4044, 328],
    "car": [384, 69, 1210, 65],
    "adult": [37155, 11687],
    "credit2": [23364, 6636],
    "ildp": [416, 167],
    "drybean": [1322, 522, 1630, 3546, 1928, 2027, 2636],
    "skin": [50859, 194198],
    "heart_cleveland": [164, 55, 36, 35, 13],
    "german_credit": [700, 300],
}
MISSING = {"adult": 6465, "ildp": 4, "heart_cleveland": 6}
CARDINALITY = {
    "scene": 1.0740,
    "yeast": 4.2371,
    "slashdot": 1.1809,
    "reuters_k500": 1.4622,
    "ng20": 1.0289,
    "corel5k": 3.522,
    "yahoo_education": 1.4632,
    "yahoo_education_brfs500": 1.4632,
}


def needed(names):
    """Parameters of tests that need the set of that name."""
    return [pytest.param(name, marks=pytest.mark.data(name)) for name in names]


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No files, an empty cache, no downloads."""
    monkeypatch.setenv("SOLERA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SOLERA_OFFLINE", "1")
    (tmp_path / "data").mkdir()
    return tmp_path


def write_table(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize("name", ["digits", "breast_cancer", "wine", "diabetes"])
def test_bundled_sets_need_no_file(nowhere, name):
    dataset = datasets.load(name)
    info = next(i for i in datasets.available() if i.name == name)
    X, _ = dataset.all
    assert X.shape == (info.rows, info.features)
    assert dataset.schema.outputs == info.outputs
    assert (dataset.source, info.at_hand) == ("scikit-learn", True)


@pytest.mark.parametrize("name", needed(tables.TABLES))
def test_tables_have_the_published_counts(name):
    info, dataset = tables.TABLES[name], datasets.load(name)
    X, y = dataset.all
    assert X.shape == (info.rows, info.features)
    assert np.isnan(X).sum() == MISSING.get(name, 0)
    if name in CLASSES:
        assert np.bincount(y).tolist() == CLASSES[name]
    if info.target == "classes":
        assert y.dtype == np.int64
        assert dataset.schema.classes.tolist() == list(range(info.outputs))
        assert len(dataset.class_names) == info.outputs
    for j, feature in enumerate(dataset.schema.features):
        if feature.kind == "categorical":
            codes = X[:, j][~np.isnan(X[:, j])]
            assert np.unique(codes).tolist() == list(range(len(feature.categories)))


@pytest.mark.data("adult")
def test_table_cells_are_what_the_file_says():
    adult = datasets.adult()
    row = {
        f.name: f.categories[int(v)] if f.kind == "categorical" else v
        for f, v in zip(adult.schema.features, adult.X[0], strict=True)
    }
    assert (row["age"], row["fnlwgt"], row["hours-per-week"]) == (39, 77516, 40)
    assert (row["workclass"], row["education"]) == ("State-gov", "Bachelors")
    assert (row["sex"], row["native-country"]) == ("Male", "United-States")
    assert adult.class_names[adult.y[0]] == "<=50K"


@pytest.mark.data("adult", "optdigits")
def test_the_source_s_own_split_is_kept():
    adult, optdigits = datasets.adult(), datasets.optdigits()
    assert np.bincount(adult.y).tolist() == [24720, 7841]
    assert np.bincount(adult.y_test).tolist() == [12435, 3846]
    assert optdigits.X.shape == (3823, 64)
    X, y = datasets.digits(test=0).all
    assert np.array_equal(optdigits.X_test, X)
    assert np.array_equal(optdigits.y_test, y)


@pytest.mark.data("carbon_nanotubes")
def test_several_outputs_are_numbers():
    tubes = datasets.carbon_nanotubes()
    assert tubes.all[1].shape == (10721, 3)
    assert (tubes.schema.target, tubes.schema.outputs) == ("numbers", 3)
    assert tubes.class_names == ()


@pytest.mark.data("credit2")
def test_identifiers_are_left_out_and_codes_keep_their_order():
    features = {f.name: f for f in datasets.credit2(test=0).schema.features}
    assert "ID" not in features
    assert features["EDUCATION"].categories == ("0", "1", "2", "3", "4", "5", "6")


@pytest.mark.data("mnist")
def test_mnist():
    X, y, X_test, y_test = datasets.mnist()
    assert (X.shape, X.dtype, X_test.shape) == ((60000, 784), np.float32, (10000, 784))
    assert (X.min(), X.max()) == (0, 1)
    assert np.bincount(y)[:3].tolist() == [5923, 6742, 5958]
    assert tuple(np.bincount(y_test)) == images.IMAGES["mnist"].test
    assert X.mean(dtype=float) * 255 == pytest.approx(33.3184, abs=1e-3)


@pytest.mark.data("cifar10")
def test_cifar10_says_when_it_is_the_subset():
    if files.find("cifar10.npz"):
        pytest.skip("the whole of CIFAR-10 is at hand")
    cifar = datasets.cifar10(flat=False)
    assert cifar.X.shape == (10000, 32, 32, 3)
    assert cifar.schema.width == 3072
    assert np.bincount(cifar.y).tolist()[:4] == [1005, 974, 1032, 1016]
    assert "subset" in cifar.title
    assert "subset" in cifar.source
    info = next(i for i in datasets.available() if i.name == "cifar10")
    assert (info.rows, info.file) == (11000, "cifar10_subset.npz")


@pytest.mark.parametrize("name", needed([*CARDINALITY, "tmc2007_500"]))
def test_multilabel_sets_have_the_published_counts(name):
    info = multilabel_sets.MULTILABEL[name]
    dataset = datasets.load(name)
    X, y = dataset.all
    assert X.shape == (info.rows, info.features)
    assert (y.shape, y.dtype) == ((info.rows, info.outputs), np.uint8)
    assert (dataset.schema.target, len(dataset.class_names)) == ("labels", info.outputs)
    if name in CARDINALITY:
        assert y.sum(axis=1).mean() == pytest.approx(CARDINALITY[name], abs=6e-5)
    if name in ("scene", "yeast"):
        assert X.dtype == np.float64
    else:
        assert (X.format, X.dtype) == ("csr", np.float32)


@pytest.mark.data("tmc2007_500")
def test_tmc_drops_copies_unless_asked():
    assert datasets.tmc2007_500(test=0).X.shape[0] == 21519
    X, y = datasets.tmc2007_500(test=0, keep_copies=True).all
    assert X.shape[0] == 28596
    assert y.sum(axis=1).mean() == pytest.approx(2.2196, abs=6e-5)


@pytest.mark.data("slashdot")
def test_sparse_and_dense_hold_the_same_numbers():
    sparse, dense = datasets.slashdot(seed=3), datasets.slashdot(seed=3, dense=True)
    assert isinstance(dense.X, np.ndarray)
    assert np.array_equal(sparse.X_test.toarray(), dense.X_test)
    assert np.array_equal(sparse.y_test, dense.y_test)


@pytest.mark.data("ildp")
def test_a_data_set_unpacks_into_four_and_describes_itself():
    dataset = datasets.ildp(test=0.2)
    X, y, X_test, y_test = dataset
    assert (len(X), len(y), len(X_test), len(y_test)) == (466, 466, 117, 117)
    assert repr(dataset) == "<Dataset ildp: 466 + 117 rows, 10 features, 2 classes>"
    assert "1 of them categorical, 4 cells missing" in dataset.summary()
    assert "patient 71.5%, no patient 28.5%" in dataset.summary()
    with pytest.raises(AttributeError):
        dataset.X = X


def test_without_test_rows_the_test_arrays_are_empty():
    wine = datasets.wine(test=0)
    assert wine.X_test.shape == (0, 13)
    assert wine.y_test.shape == (0,)
    assert len(wine.X) == 178


def test_held_out_rows_are_stratified_exact_and_seeded():
    y = np.repeat([0, 1, 2], [4000, 400, 40])
    marked = held_out("x", y, "classes", 0.25, 0)
    assert np.bincount(y[marked]).tolist() == [1000, 100, 10]
    assert np.array_equal(marked, held_out("x", y, "classes", 0.25, 0))
    assert not np.array_equal(marked, held_out("x", y, "classes", 0.25, 1))
    for share in (0.1, 1 / 3, 0.9):
        for n in (1, 2, 7, 1000):
            count = held_out("x", np.zeros(n), "numbers", share, 0).sum()
            assert abs(count - share * n) <= 0.5 + 1e-9


def test_label_sets_are_strata():
    y = np.repeat([[1, 0, 0], [0, 1, 1], [0, 0, 0]], [400, 200, 40], axis=0).astype(np.uint8)
    marked = held_out("x", y, "labels", 0.25, 0)
    assert y[marked].sum(axis=0).tolist() == [100, 50, 50]


@pytest.mark.parametrize("test", [-0.1, 1, 2, float("nan")])
def test_an_impossible_share_is_refused(test):
    with pytest.raises(UsageError, match=r"digits\(test="):
        datasets.digits(test=test)


def test_the_cache_serves_where_the_folder_does_not(nowhere):
    table = "B,G,R,class\n1,2,3,1\n4,5,6,2\n"
    write_table(nowhere / "cache/solera/skin.csv.gz", table)
    assert datasets.skin(test=0).X.tolist() == [[1, 2, 3], [4, 5, 6]]
    write_table(nowhere / "data/skin.csv.gz", table.replace("4", "9"))
    dataset = datasets.skin(test=0)
    assert dataset.X[1, 0] == 9
    assert dataset.source == str(nowhere / "data/skin.csv.gz")
    assert dataset.class_names == ("skin", "not skin")


def test_at_hand_only_looks(nowhere):
    at_hand = {i.name: i.at_hand for i in datasets.available()}
    assert at_hand["digits"]
    assert not at_hand["adult"]
    (nowhere / "data/adult.csv.gz").touch()
    assert next(i for i in datasets.available() if i.name == "adult").at_hand


@pytest.mark.parametrize(
    "name", ["adult", "mnist", "cifar10", "scene", "mediamill", "human_pseaac"]
)
def test_absent_and_offline_says_which_file_to_put_where(nowhere, name):
    info = next(i for i in datasets.available() if i.name == name)
    with pytest.raises(DatasetUnavailable) as error:
        datasets.load(name)
    for part in (repr(name), info.file, str(nowhere / "data"), str(nowhere / "cache/solera")):
        assert part in str(error.value)


def test_a_file_of_labels_without_its_arrays_says_which(nowhere):
    np.savez(nowhere / "data/scene.npz", X=np.zeros((4, 294)), Y=np.zeros((4, 6)))
    with pytest.raises(DataError, match=r"scene\.npz cannot be read: it has no 'format'"):
        datasets.scene()


def test_labels_are_the_columns_of_0_and_1_of_an_arff_file(nowhere):
    """As Meka writes them, labels first."""
    labels = [f"@attribute L{j} {{0,1}}" for j in range(14)]
    numbers = [f"@attribute A{j} numeric" for j in range(440)]
    rows = [",".join([*(str(int(j == i)) for j in range(14)), *[f"{i}.5"] * 440]) for i in range(8)]
    text = ["@relation human", *labels, *numbers, "@data", *rows]
    (nowhere / "data/HumanPseAAC.arff").write_text("\n".join(text))
    dataset = datasets.human_pseaac(test=0.0)
    assert dataset.X[:, 7].tolist() == [i + 0.5 for i in range(8)]
    assert dataset.y.tolist() == np.eye(8, 14, dtype=int).tolist()
    assert dataset.class_names[3] == "L3"
    (nowhere / "data/HumanPseAAC.arff").write_text("\n".join([*text[:5], "@data", "1,0,0,0"]))
    with pytest.raises(DataError, match=r"HumanPseAAC\.arff"):
        datasets.human_pseaac()


def test_without_a_folder_the_error_names_the_variable(nowhere, monkeypatch):
    monkeypatch.delenv("SOLERA_DATA")
    with pytest.raises(DatasetUnavailable, match="a folder that SOLERA_DATA names"):
        datasets.car()


def test_a_failed_download_is_unavailable_and_leaves_no_timeout(nowhere, monkeypatch):
    def fetch(*args, **kwargs):
        assert socket.getdefaulttimeout() is not None
        raise URLError("no route to host")

    pytest.importorskip("pandas", reason="downloads need pandas")
    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    monkeypatch.setenv("SOLERA_OFFLINE", "0")
    with pytest.raises(DatasetUnavailable, match=r"no route to host.*nursery\.csv\.gz"):
        datasets.nursery()
    assert socket.getdefaulttimeout() is None
    assert files.find("nursery.csv.gz") is None


def test_a_download_without_pandas_names_the_extra(nowhere, monkeypatch):
    monkeypatch.setenv("SOLERA_OFFLINE", "0")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"solera\[pandas\]"):
        datasets.nursery()


def test_a_download_is_converted_and_kept(nowhere, monkeypatch):
    pandas = pytest.importorskip("pandas", reason="downloads need pandas")
    frame = pandas.DataFrame(
        {
            "V1": [65, 62, 30],
            "V2": pandas.Categorical(["Female", "Male", "Male"]),
            **{f"V{j}": [0.5, 1.5, np.nan] for j in range(3, 11)},
        }
    )
    bunch = SimpleNamespace(data=frame, target=pandas.Series(["1", "2", "1"], dtype="category"))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda *a, **k: bunch)
    monkeypatch.setenv("SOLERA_OFFLINE", "0")
    with pytest.raises(DatasetUnavailable, match="3 x 10, not 583 x 10"):
        datasets.ildp()
    monkeypatch.setitem(tables.TABLES, "ildp", replace(tables.TABLES["ildp"], rows=3))
    first = tables.load("ildp")
    monkeypatch.setenv("SOLERA_OFFLINE", "1")
    again = tables.load("ildp")
    assert first.source.startswith("download, kept in ")
    assert again.source == str(nowhere / "cache/solera/ildp.csv.gz")
    assert list((nowhere / "cache/solera").iterdir()) == [nowhere / "cache/solera/ildp.csv.gz"]
    assert np.array_equal(first.X, again.X, equal_nan=True)
    assert first.X[:, :3].tolist()[:2] == [[65, 0, 0.5], [62, 1, 1.5]]
    assert np.isnan(first.X[2, 2:]).all()
    assert first.y.tolist() == [0, 1, 0]


@pytest.mark.parametrize("test_first", [False, True])
def test_a_downloaded_table_gets_its_own_split_back(nowhere, monkeypatch, test_first):
    pandas = pytest.importorskip("pandas", reason="downloads need pandas")
    adult = replace(tables.TABLES["adult"], rows=5, split=((1, 2), (2, 0)))
    classes = ["<=50K", "<=50K", ">50K", ">50K", "<=50K"]
    classes = classes if test_first else [*classes[2:], *classes[:2]]
    frame = pandas.DataFrame({name: list("abcde") for name in adult.columns})
    path = nowhere / "data/adult.csv.gz"
    for name in set(adult.columns) - adult.categorical:
        frame[name] = range(5)
    tables.store(adult, frame, pandas.Series(classes), path)
    monkeypatch.setitem(tables.TABLES, "adult", adult)
    dataset = tables.load("adult")
    assert dataset.y_test.tolist() == [0, 0]
    assert dataset.X_test[:, 0].tolist() == ([0, 1] if test_first else [3, 4])
    shuffled = pandas.Series([">50K", "<=50K", "<=50K", "<=50K", ">50K"])
    with pytest.raises(DatasetUnavailable, match="training and test rows"):
        tables.store(adult, frame, shuffled, path)


def test_downloaded_images_are_turned_upright(nowhere, monkeypatch):
    pandas = pytest.importorskip("pandas", reason="downloads need pandas")
    tiny = replace(
        images.IMAGES["cifar10"],
        shape=(2, 2, 3),
        features=12,
        rows=3,
        test=(0, 1) + (0,) * 8,
        subset=None,
    )
    pixels = np.arange(36).reshape(3, 12)
    labels = pandas.Series(["3", "9", "1"])
    images.store(tiny, pandas.DataFrame(pixels), labels, nowhere / "data/cifar10.npz")
    monkeypatch.setitem(images.IMAGES, "cifar10", tiny)
    dataset = images.load("cifar10", flat=False)
    red, _, blue = pixels[0].reshape(3, 4)
    assert (dataset.X[0, :, :, 0] * 255).ravel().tolist() == pytest.approx(red.tolist())
    assert (dataset.X[0, :, :, 2] * 255).ravel().tolist() == pytest.approx(blue.tolist())
    assert (dataset.y.tolist(), dataset.y_test.tolist()) == ([3, 9], [1])
    with pytest.raises(DatasetUnavailable, match="test rows"):
        images.store(tiny, pandas.DataFrame(pixels), labels[::-1], nowhere / "data/cifar10.npz")


def test_downloaded_labels_become_a_matrix(nowhere, monkeypatch):
    pandas = pytest.importorskip("pandas", reason="downloads need pandas")
    tiny = replace(multilabel_sets.MULTILABEL["scene"], rows=2, features=1, outputs=2)
    labels = pandas.DataFrame({"Beach": ["TRUE", "FALSE"], "Urban": ["TRUE", "TRUE"]})
    path = nowhere / "data/scene.npz"
    multilabel_sets.store(tiny, pandas.DataFrame({"Att1": [0.5, 1.5]}), labels, path)
    monkeypatch.setitem(multilabel_sets.MULTILABEL, "scene", tiny)
    dataset = multilabel_sets.load("scene", test=0, seed=0)
    assert dataset.X.tolist() == [[0.5], [1.5]]
    assert dataset.y.tolist() == [[1, 1], [0, 1]]
    assert dataset.class_names == ("Beach", "Urban")


HEADER = "B,G,R,class\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEADER, "no rows"),
        ("B,G,class\n1,2,1\n3,4,2\n", "no column R"),
        (HEADER + "1,2,3,1\n4,5,2\n", "number of columns"),
        (HEADER + "1,2,red,1\n4,5,6,2\n", "column R: could not convert string to float: 'red'"),
        (HEADER + "1,2,3,1\n4,5,6,\n7,8,9,2\n", "column class has missing values"),
        (HEADER + "1,2,3,1\n4,5,6,1\n", "column class has 1 classes"),
    ],
)
def test_a_wrong_table_is_an_error_that_names_the_file(nowhere, text, says):
    write_table(nowhere / "data/skin.csv.gz", text)
    with pytest.raises(DataError, match=r"skin\.csv\.gz") as error:
        datasets.skin()
    assert says in str(error.value)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"no gz"])
@pytest.mark.parametrize("name", ["skin", "scene", "mnist"])
def test_a_damaged_file_is_an_error_that_names_it(nowhere, name, damage):
    path = nowhere / "data" / next(i.file for i in datasets.available() if i.name == name)
    if name == "skin":
        write_table(path, HEADER + "1,2,3,1\n4,5,6,2\n" * 1000)
    else:
        np.savez_compressed(path, Y=np.arange(10000), x_train=np.arange(10000))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=path.name):
        datasets.load(name)


def test_wrong_arrays_are_an_error_that_names_the_file(nowhere):
    scene, mnist = nowhere / "data/scene.npz", nowhere / "data/mnist.npz"
    np.savez(scene, Y=np.zeros((2, 6)))
    with pytest.raises(DataError, match=r"scene\.npz cannot be read.*format"):
        datasets.scene()
    np.savez(scene, Y=np.zeros((2, 6)), format="dense", X=np.zeros((2, 5)))
    with pytest.raises(DataError, match=r"scene\.npz: X is .*294 features and 6 labels"):
        datasets.scene()
    np.savez(scene, Y=np.array([{}], dtype=object), format="dense")
    with pytest.raises(DataError, match=r"scene\.npz cannot be read.*allow_pickle"):
        datasets.scene()
    np.savez(mnist, x_train=np.zeros((2, 28, 27), np.uint8), y_train=np.zeros(2, np.uint8))
    with pytest.raises(DataError, match=r"mnist\.npz: x_train is .*28 x 28"):
        datasets.mnist()


def test_sparse_columns_out_of_range_are_refused(nowhere):
    np.savez(
        nowhere / "data/slashdot.npz",
        format="csr",
        Y=np.zeros((1, 22)),
        X_data=np.ones(1),
        X_indices=np.array([5000]),
        X_indptr=np.array([0, 1]),
        X_shape=np.array([1, 1079]),
    )
    with pytest.raises(DataError, match=r"slashdot\.npz"):
        datasets.slashdot()


@pytest.mark.parametrize(
    ("typed", "meant"), [("mnits", "mnist"), ("Adult", "adult"), ("cifar", "cifar10")]
)
def test_an_unknown_name_suggests_the_nearest(typed, meant):
    with pytest.raises(UsageError, match=f"did you mean '{meant}'"):
        datasets.load(typed)


def test_an_unknown_name_or_option_says_what_there_is():
    with pytest.raises(UsageError, match="available"):
        datasets.load("qqqq")
    with pytest.raises(UsageError, match=r"no option 'flat'.*test, seed"):
        datasets.load("wine", flat=True)
    with pytest.raises(UsageError, match="it has none"):
        datasets.load("adult", test=0.1)


def test_every_data_set_has_a_documented_loader_and_back():
    names = {info.name for info in datasets.available()}
    public = {n for n in datasets.__all__ if inspect.isfunction(getattr(datasets, n))}
    assert names == public - {"available", "load"}
    assert all(inspect.getdoc(getattr(datasets, name)) for name in names)


def test_importing_the_loaders_loads_no_heavy_library():
    for module in (adapters, dataset, datasets, files, images, multilabel_sets, tables):
        body = ast.parse(inspect.getsource(module)).body
        imported = {
            name.split(".")[0]
            for node in body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
            )
        }
        assert imported - set(sys.stdlib_module_names) <= {"numpy", "solera"}, module.__name__
