"""Clients in files: the same as the same rows in memory, and never all of them at once."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest

import solera as so
from solera.core.errors import DataError, UsageError
from solera.data import table_files
from solera.data.client_files import from_loader
from solera.data.table_files import TableFile


def patients(rows=120, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 90, rows)
    stage = rng.choice(["I", "II", "III"], rows)
    frame = pd.DataFrame(
        {
            "age": age,
            "pressure": rng.normal(120, 15, rows).round(3),
            "stage": stage,
            "smoker": rng.random(rows) < 0.3,
            "seen": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), "D"),
            "hospital": rng.choice(["north", "south", "west"], rows),
        }
    )
    frame["outcome"] = np.where(age + 30 * (stage == "III") > 65, "ill", "well")
    return frame


def write(frame, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)


@pytest.fixture(params=[".parquet", ".csv", ".csv.gz"])
def ending(request):
    return request.param


@pytest.fixture
def files(tmp_path, ending):
    """Six clients of 20 rows, and the frame of all."""
    frame = patients().drop(columns="hospital")
    for k in range(6):
        write(frame[20 * k : 20 * k + 20], tmp_path / f"c{k}{ending}")
    return tmp_path / f"*{ending}", frame


def rows_of(source, client, part="train"):
    return source.segments(np.array([client]), part)[0]


def in_memory(frame, groups=None, **options):
    """A simulation whose clients hold consecutive rows, or those of each group, in file order."""
    dataset = so.from_pandas(frame, target="outcome", **options).with_class_names()
    codes = np.repeat(np.arange(6), 20) if groups is None else groups
    pairs = [(dataset.X[codes == k], dataset.y[codes == k]) for k in np.unique(codes)]
    offsets = np.concatenate([[0], np.cumsum([len(y) for _, y in pairs])])
    X, y = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return so.data.FederatedData(X, y, offsets, schema=dataset.schema)


def test_files_are_read_as_one_frame_would_be(files):
    pattern, frame = files
    source = so.from_files(str(pattern), target="outcome")
    memory = in_memory(frame)
    assert source.names == tuple(f"c{k}" for k in range(6))
    assert source.schema.features == memory.schema.features
    assert source.schema.classes.tolist() == ["ill", "well"]
    assert source.schema.target_names == ("outcome",)
    assert source.sizes().tolist() == [20] * 6
    assert source.is_complete()
    for k in range(6):
        ours, theirs = rows_of(source, k), rows_of(memory, k)
        assert np.array_equal(ours.X, theirs.X)
        assert ours.y.tolist() == theirs.y.tolist()
    several = source.segments(np.array([1, 4]), "train")
    assert np.array_equal(several[1].X, rows_of(memory, 4).X)


LEARNERS = [so.FedHistGBDT(rounds=3), so.Pipeline(so.FedScaler(), so.FedHEONN()), so.FedKMeans(3)]


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda learner: type(learner).__name__)
@pytest.mark.parametrize("options", [{}, {"engine": "processes", "workers": 2}])
def test_models_are_those_of_rows_in_memory(tmp_path, learner, options):
    frame = patients()[["age", "pressure", "outcome"]]
    for k in range(6):
        write(frame[20 * k : 20 * k + 20], tmp_path / f"c{k}.parquet")
    source = so.from_files(str(tmp_path / "*.parquet"), target="outcome", memory=2_000)
    parts = {"validation": 0.2, "test": 0.1, "seed": 3}
    with so.simulate(source, **parts, **options) as fed:
        ours = learner.clone().fit(fed)
    theirs = learner.clone().fit(so.simulate(in_memory(frame), **parts))
    rows = so.from_pandas(frame, target="outcome").X
    assert np.array_equal(ours.predict(rows), theirs.predict(rows))


def test_set_aside_rows_are_those_of_rows_in_memory(files):
    pattern, frame = files
    source = so.from_files(str(pattern), target="outcome").split(validation=0.2, test=0.1, seed=5)
    memory = in_memory(frame).split(validation=0.2, test=0.1, seed=5)
    for part in ("train", "validation", "test"):
        assert source.sizes(part).tolist() == memory.sizes(part).tolist()
        assert np.array_equal(rows_of(source, 2, part).X, rows_of(memory, 2, part).X)
        assert np.array_equal(rows_of(source, 2, part).y, rows_of(memory, 2, part).y)
    with pytest.raises(UsageError, match="split already"):
        source.split(test=0.1)


def test_a_folder_of_files_is_a_client(tmp_path):
    frame = patients().drop(columns="hospital")
    for k in range(6):
        write(frame[20 * k : 20 * k + 20], tmp_path / f"h{k // 3}" / f"part{k}.csv")
    source = so.from_files(str(tmp_path / "*"), target="outcome")
    assert source.names == ("h0", "h1")
    assert source.sizes().tolist() == [60, 60]
    memory = in_memory(frame, np.repeat([0, 1], 60))
    assert np.array_equal(rows_of(source, 1).X, rows_of(memory, 1).X)


@pytest.mark.parametrize("in_order", [True, False])
def test_values_of_a_column_are_clients(tmp_path, ending, in_order, monkeypatch):
    monkeypatch.setattr(table_files, "_PIECE", 1000)  # several pieces of each file of lines
    frame = patients()
    frame["stage"] = frame["stage"].replace("I", 'I,\n"mild"')  # a line break inside quotes
    if in_order:
        frame = frame.sort_values("hospital", kind="stable", ignore_index=True)
    if ending == ".parquet":
        frame.to_parquet(tmp_path / "all.parquet", index=False, row_group_size=25)
    else:
        write(frame, tmp_path / f"all{ending}")
    source = so.from_files(tmp_path / f"all{ending}", target="outcome", group="hospital")
    assert source.names == ("north", "south", "west")
    pieces = len(source._pieces) - 1
    assert pieces == 1 if ending == ".csv.gz" else pieces > 3
    memory = in_memory(frame.drop(columns="hospital"), frame["hospital"].to_numpy())
    assert source.schema.features == memory.schema.features
    for k in range(3):
        assert np.array_equal(rows_of(source, k).X, rows_of(memory, k).X)
        assert np.array_equal(rows_of(source, k).y, rows_of(memory, k).y)


def test_whole_numbers_are_classes_and_groups_in_their_order(tmp_path):
    frame = pd.DataFrame({"x": np.arange(30.0), "who": np.arange(30) % 12, "y": np.arange(30) % 3})
    write(frame, tmp_path / "all.parquet")
    source = so.from_files(tmp_path / "all.parquet", target="y", group="who")
    assert source.names == tuple(str(k) for k in range(12))
    assert source.schema.classes.tolist() == [0, 1, 2]
    assert rows_of(source, 11).X.ravel().tolist() == [11.0, 23.0]
    assert rows_of(source, 11).y.tolist() == [2, 2]


def test_labels_numbers_and_no_target(tmp_path):
    frame = pd.DataFrame({"x": [1.0, 2, 3, 4], "a": [0, 1, 1, 0], "b": [1, 1, 0, 0]})
    write(frame[:2], tmp_path / "0.parquet")
    write(frame[2:], tmp_path / "1.parquet")
    files = str(tmp_path / "*.parquet")
    labels = so.from_files(files, target=["a", "b"])
    assert (labels.schema.target, labels.schema.outputs) == ("labels", 2)
    assert rows_of(labels, 1).y.tolist() == [[1, 0], [0, 0]]
    numbers = so.from_files(files, target="x")
    assert (numbers.schema.target, numbers.schema.width) == ("numbers", 2)
    nothing = so.from_files(files, columns=["b"])
    assert nothing.schema.target == "none"
    assert rows_of(nothing, 0).X.tolist() == [[1.0], [1.0]]


def test_a_column_is_what_all_files_make_of_it(tmp_path):
    write(pd.DataFrame({"x": [1, 2], "t": ["b", "a"], "m": [None, None]}), tmp_path / "0.csv")
    write(pd.DataFrame({"x": [1.5, 2], "t": ["c", "a"], "m": ["u", "v"]}), tmp_path / "1.csv")
    source = so.from_files(str(tmp_path / "*.csv"))
    assert not source.is_complete()  # column m misses values
    features = source.schema.features
    assert [f.kind for f in features] == ["numeric", "categorical", "categorical"]
    assert [f.categories for f in features] == [(), ("a", "b", "c"), ("u", "v")]


@pytest.mark.parametrize(
    ("second", "options", "says"),
    [
        ({"x": [1.0]}, {}, "1.csv has no column 'y'"),
        ({"x": [1.0], "y": ["a"], "z": [1]}, {}, "1.csv has a column 'z'"),
        ({"x": ["one"], "y": ["a"]}, {}, "1.csv: column 'x' holds text, numbers in .*0.csv"),
        ({"x": [1.0], "y": [None]}, {}, "1.csv: target column 'y' has 1 missing"),
        ({"x": [], "y": []}, {}, "1.csv has no rows"),
        ({"x": [1.0], "y": ["a"]}, {"columns": ["w"]}, "no column 'w'"),
        ({"x": [1.0], "y": [None]}, {"target": None, "group": "y"}, "'y' is missing in some rows"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, second, options, says):
    write(pd.DataFrame({"x": [1.0, 2.0], "y": ["a", "b"]}), tmp_path / "0.csv")
    write(pd.DataFrame(second), tmp_path / "1.csv")
    with pytest.raises(DataError, match=says):
        rows_of(so.from_files(str(tmp_path / "*.csv"), **{"target": "y", **options}), 1)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(DataError, match="no file matches"):
        so.from_files(str(tmp_path / "*.parquet"))
    (tmp_path / "bad.parquet").write_bytes(b"not parquet")
    with pytest.raises(DataError, match=r"bad\.parquet cannot be read"):
        so.from_files(str(tmp_path / "*.parquet"))
    write(pd.DataFrame({"x": "id" + pd.Series(range(30_000)).astype(str)}), tmp_path / "ids.csv")
    with pytest.raises(DataError, match="different texts"):
        so.from_files(tmp_path / "ids.csv")


@pytest.mark.parametrize("memory", [1, 5_000, 1 << 20])
def test_the_cache_keeps_to_its_bound(files, memory, monkeypatch):
    pattern, _ = files
    source = so.from_files(str(pattern), target="outcome", memory=memory)
    opened = []
    real = TableFile.read

    def counted(self, columns):
        opened.append(self.path)
        return real(self, columns)

    monkeypatch.setattr(TableFile, "read", counted)
    for _ in range(2):
        source.segments(np.arange(6), "train")
        assert source._cache.bytes <= memory
    assert len(opened) == (6 if memory == 1 << 20 else 12)


def test_workers_read_and_the_driver_does_not(files, monkeypatch):
    pattern, _ = files
    source = so.from_files(str(pattern), target="outcome")
    here, real = os.getpid(), TableFile.read

    def elsewhere(self, columns):
        assert os.getpid() != here, "the driver reads rows"
        return real(self, columns)

    monkeypatch.setattr(TableFile, "read", elsewhere)
    with so.simulate(source, engine="processes", workers=1) as fed:
        so.Pipeline(so.FedEncoder(), so.FedImputer(), so.FedScaler(), so.FedHEONN()).fit(fed)


class Frames:
    """A loader of frames."""

    def __init__(self, frame):
        self.frame = frame

    def __len__(self):
        return 6

    def __getitem__(self, k):
        return self.frame[20 * k : 20 * k + 20]


class Pairs(Frames):
    """A loader of arrays; classes 0, 1 and 2 of which each client has one."""

    def __getitem__(self, k):
        rows = self.frame[20 * k : 20 * k + 20]
        return rows[["age", "pressure"]].to_numpy(float), np.full(20, k % 3)


def test_a_loader_gives_the_rows_of_clients():
    frame = patients().drop(columns="hospital")
    source = from_loader(Frames(frame), target="outcome")
    memory = in_memory(frame)
    assert source.schema.features == memory.schema.features
    assert np.array_equal(rows_of(source, 3).X, rows_of(memory, 3).X)
    pairs = from_loader(Pairs(frame))
    assert pairs.schema.classes.tolist() == [0, 1, 2]
    options = {"start": "spawn"}
    with so.simulate(pairs, engine="processes", workers=1, engine_options=options) as fed:
        model = so.FedHEONN().fit(fed)
    assert model.predict(rows_of(pairs, 0).X).shape == (20,)
    with pytest.raises(UsageError, match="map-style"):
        from_loader(iter([]))


def test_many_files_never_fill_the_memory(tmp_path):
    """80 MB of rows in 200 files, 4 MB of them kept: the driver's peak stays far below."""
    code = textwrap.dedent(
        """
        import resource, sys
        import numpy as np, pyarrow as pa, pyarrow.parquet as pq
        from pathlib import Path
        import solera as so

        folder = Path(sys.argv[1])
        X = np.random.default_rng(0).normal(size=(2_000, 25))
        table = pa.table({f"x{j}": X[:, j] for j in range(25)})
        table = table.append_column("y", pa.array((X[:, 0] > 0).astype(np.int64)))
        for k in range(200):
            pq.write_table(table, folder / f"{k:03d}.parquet", use_dictionary=False)
        source = so.from_files(str(folder / "*.parquet"), target="y", memory=4 << 20)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        so.FedHEONN().fit(so.simulate(source))
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 40
