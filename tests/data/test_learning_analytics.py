"""Students who drop out: raw logs as a stream, and the data sets at hand."""

from __future__ import annotations

import gzip
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solera.core.errors import DataError, DatasetUnavailable, UsageError
from solera.data import activity_logs, datasets
from solera.data.activity_logs import read_folder

KDD = {
    "enrollment_train.csv": "enrollment_id,username,course_id\n1,ann,c1\n3,bob,c1\n10,ann,c2\n",
    "log_train.csv": (
        "enrollment_id,time,source,event,object\n"
        "1,2014-06-14T09:38:29,server,navigate,x\n"
        "1,2014-06-14T09:38:39,browser,video,x\n"
        "10,2014-06-14T09:38:39,browser,video,x\n"
        "1,2014-06-14T09:38:49,browser,video,y\n"
    ),
    "truth_train.csv": "1,0\n3,1\n10,1\n",
}
XUETANG = {
    "train_log.csv": (
        "enroll_id,username,course_id,session_id,action,object,time\n"
        "7,u1,c9,s,play_video,,2015-01-01\n"
        "8,u2,c9,s,stop_video,,2015-01-01\n"
        '7,u1,c9,s,play_video,"a,b",2015-01-02\n'
    ),
    "train_truth.csv": "enroll_id,truth\n7,0\n8,1\n",
}


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_kddcup_logs_become_a_matrix(tmp_path):
    made = read_folder(write(tmp_path, KDD))
    assert made.kinds == ("navigate", "video")
    assert made.enrolments.tolist() == ["1", "3", "10"]
    assert made.counts.tolist() == [[1, 2], [0, 0], [0, 1]]
    assert made.students.tolist() == ["ann", "bob", "ann"]
    assert made.courses.tolist() == ["c1", "c1", "c2"]
    assert made.dropout.tolist() == [0, 1, 1]


def test_xuetangx_logs_name_student_and_course_themselves(tmp_path):
    made = read_folder(write(tmp_path, XUETANG))
    assert made.kinds == ("play_video", "stop_video")
    assert made.counts.tolist() == [[2, 0], [0, 1]]
    assert made.students.tolist() == ["u1", "u2"]


def test_compressed_and_divided_files_are_one_log(tmp_path):
    plain = read_folder(write(tmp_path / "plain", KDD))
    header, *lines = KDD["log_train.csv"].splitlines(keepends=True)
    parts = write(tmp_path / "parts", {k: v for k, v in KDD.items() if "log" not in k})
    (parts / "log_a.csv").write_text(header + "".join(lines[:1]))
    (parts / "log_b.csv.gz").write_bytes(gzip.compress((header + "".join(lines[1:])).encode()))
    assert read_folder(parts).counts.tolist() == plain.counts.tolist()


events = st.lists(st.tuples(st.integers(0, 40), st.sampled_from("abcdefgh")), max_size=200)


@settings(deadline=None, max_examples=40)
@given(events, st.integers(1, 7))
def test_counts_are_those_of_a_counter_whatever_the_block(events, block):
    import tempfile
    from pathlib import Path

    before, activity_logs._BLOCK = activity_logs._BLOCK, block
    try:
        with tempfile.TemporaryDirectory() as folder:
            lines = "".join(f"{e},u{e},c,{kind}\n" for e, kind in events)
            files = {
                "log_x.csv": "enrollment_id,username,course_id,event\n" + lines,
                "truth_x.csv": "".join(f"{e},{e % 2}\n" for e in range(41)),
            }
            if not events:
                return
            made = read_folder(write(Path(folder), files))
    finally:
        activity_logs._BLOCK = before
    wanted = Counter((str(e), kind) for e, kind in events)
    found = {
        (made.enrolments[i], made.kinds[j]): int(made.counts[i, j])
        for i, j in zip(*np.nonzero(made.counts), strict=True)
    }
    assert found == dict(wanted)


def test_memory_does_not_grow_with_the_log(tmp_path):
    rng = np.random.default_rng(0)

    def peak(lines):
        folder = tmp_path / str(lines)
        folder.mkdir()
        ids = rng.integers(0, 2000, lines)
        with (folder / "log_big.csv").open("w") as file:
            file.write("enrollment_id,username,course_id,event,object\n")
            file.writelines(f"{e},u{e},c{e % 7},e{e % 5},{'x' * 20}\n" for e in ids.tolist())
        (folder / "truth_big.csv").write_text("".join(f"{e},1\n" for e in range(2000)))
        tracemalloc.start()
        made = read_folder(folder)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert made.counts.sum() == lines
        return most

    activity_logs._BLOCK, before = 5000, activity_logs._BLOCK
    try:
        short, long = peak(20_000), peak(200_000)
    finally:
        activity_logs._BLOCK = before
    assert long < 1.1 * short


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("log_train.csv", "enrollment_id,event\n99,video\n", "line 2: enrolment '99'"),
        ("log_train.csv", "enrollment_id,event\n1\n", "line 2: 1 cells"),
        ("log_train.csv", "enrollment_id,what\n1,x\n", "no column event or action"),
        ("log_train.csv", "", "empty"),
        ("truth_train.csv", "1,0\n3,maybe\n", "'maybe' is not 0 or 1"),
        ("truth_train.csv", "55,0\n", "no enrolment"),
        ("enrollment_train.csv", "enrollment_id,course_id\n1,c\n", "username"),
    ],
)
def test_bad_logs_are_named(tmp_path, file, text, says):
    folder = write(tmp_path, {**KDD, file: text})
    with pytest.raises(DataError, match=says):
        read_folder(folder)
    with pytest.raises(DataError, match="truth"):
        read_folder(write(tmp_path / "part", {"log_train.csv": KDD["log_train.csv"]}))


def test_the_loader_keeps_students_together(tmp_path, monkeypatch):
    monkeypatch.setenv("SOLERA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DatasetUnavailable, match=r"xuetangx/log_\*\.csv"):
        datasets.xuetangx()
    enrolments = range(90)
    write(
        tmp_path / "xuetangx",
        {
            "log_a.csv": "enroll_id,username,course_id,action\n"
            + "".join(f"{e},u{e % 30},c{e % 4},k{e % 3}\n" for e in enrolments),
            "truth_a.csv": "".join(f"{e},{e % 2}\n" for e in enrolments),
        },
    )
    data = datasets.load("xuetangx", test=0.3, seed=1)
    assert next(i for i in datasets.available() if i.name == "xuetangx").at_hand
    assert data.X.shape == (63, 3)
    assert not set(data.groups["student"]) & set(data.groups_test["student"])
    assert set(data.groups["course"]) == {"c0", "c1", "c2", "c3"}


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        pytest.param(name, classes, marks=pytest.mark.data(name))
        for name, classes in (
            ("xuetangx_actions16k", [9122, 7290]),
            ("kddcup2015", [9735, 47631]),
            ("oulad", [22437, 10156]),
        )
    ],
)
def test_the_sets_have_the_published_counts(name, classes):
    info = next(i for i in datasets.available() if i.name == name)
    data = datasets.load(name)
    X, y = data.all
    assert X.shape == (info.rows, info.features)
    assert np.bincount(y).tolist() == classes
    assert data.X_test.shape[0] == pytest.approx(0.3 * info.rows, abs=1)
    for group, values in data.groups.items():
        assert len(values) == len(data.y)
        assert len(data.groups_test[group]) == len(data.y_test)


@pytest.mark.data("kddcup2015")
def test_kddcup_courses_and_days():
    data = datasets.kddcup2015(days=2, test=0)
    assert len(np.unique(data.groups["course"])) == 31
    assert data.schema.features[0].name == "day0_access"
    assert data.X.shape == (57366, 14)
    whole = datasets.kddcup2015(test=0)
    assert np.array_equal(whole.X[:, :14], data.X)
    with pytest.raises(UsageError, match="days"):
        datasets.kddcup2015(days=31)


@pytest.mark.data("oulad")
def test_oulad_counts_what_was_known_on_that_day():
    early, late = datasets.oulad(day=20, test=0), datasets.oulad(day=1000, test=0)
    names = [feature.name for feature in early.schema.features]
    due, handed, score = (names.index(n) for n in ("due", "submitted", "mean_score"))
    assert len(np.unique(early.groups["presentation"])) == 22
    assert (early.X[:, handed] <= late.X[:, handed]).all()
    assert late.X[:, handed].sum() == 173912  # every submission of the source
    first = np.flatnonzero(early.groups["student"] == "11391")[0]
    assert (early.X[first, due], early.X[first, handed], early.X[first, score]) == (1, 1, 78)
