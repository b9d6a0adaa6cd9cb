from solera.study.execute import StudyRun


def write_reports(run: StudyRun) -> None: ...
