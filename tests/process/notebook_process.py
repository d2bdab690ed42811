"""Notebooks one after the other in one process, for Java starts once: `… FOLDER NOTEBOOK…`.

What each one said is left in FOLDER, and its traceback beside it where it failed.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path


def run(notebook: Path, folder: Path) -> None:
    with folder.joinpath(f"{notebook.name}.said").open("w") as said, redirect_stdout(said):
        try:
            runpy.run_path(str(notebook), run_name="__main__")
        except BaseException:  # noqa: BLE001 - the next one is judged by itself
            folder.joinpath(f"{notebook.name}.failed").write_text(traceback.format_exc())


def main(folder: str, *notebooks: str) -> None:
    for notebook in notebooks:
        run(Path(notebook), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
