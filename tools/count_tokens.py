"""Count the tokens of code in folders: `python tools/count_tokens.py [folder ...]`.

The count is Python's own tokenizer's, without comments, docstrings and layout, so that neither
long lines nor explanations change it. It works on any folder, a peer's too:

    python tools/count_tokens.py src/solera
    python tools/count_tokens.py --by-package src/solera
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def count_tokens(source: str) -> int:
    """The tokens of `source` that are neither layout nor on the lines of a bare string."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type not in LAYOUT and token.start[0] not in prose for token in tokens)


def count_folder(folder: Path) -> Counter[str]:
    """Tokens of each Python file below `folder`, by its path relative to the folder."""
    counts: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.py")):
        counts[path.relative_to(folder).as_posix()] = count_tokens(path.read_text("utf-8"))
    return counts


def main() -> None:
    """Print the counts of the folders named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[Path("src")])
    parser.add_argument("--by-file", action="store_true", help="a line for each file")
    parser.add_argument("--by-package", action="store_true", help="a line for each first folder")
    options = parser.parse_args()
    for folder in options.folders:
        counts = count_folder(folder)
        groups: Counter[str] = Counter()
        for name, tokens in counts.items():
            if options.by_file:
                groups[name] += tokens
            elif options.by_package:
                groups[name.partition("/")[0]] += tokens
        for name, tokens in sorted(groups.items()):
            print(f"{tokens:9,}  {name}")
        print(f"{counts.total():9,}  {folder} ({len(counts)} files)")


if __name__ == "__main__":
    main()
