"""The summary of a run, written as CSV and Markdown and drawn as plots."""

# pandas has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
from pathlib import Path

import pandas as pd

from gpuyard.storage.archive import beside, replace
from gpuyard.studies.markdown import markdown_page
from gpuyard.studies.plots import Plot, build_plots
from gpuyard.studies.run_table import RunTable


class RunSummary(RunTable):
    """A run's table, and the files and plots that show it."""

    def to_csv(self, path: Path) -> Path:
        """Write all columns as `summary_run_<ts>.csv` and return the path.

        `path` is the file or the folder for it.
        """
        path = self._named(path, "csv")
        with beside(path) as fresh:
            pd.DataFrame(self.rows).to_csv(fresh, index=False)
            replace(fresh, path)
        return path

    def to_markdown(self, path: Path | None = None) -> str:
        """Return the summary as Markdown, and write it to `path`, if given."""
        text = markdown_page(self)
        if path is not None:
            path = self._named(path, "md")
            with beside(path) as fresh:
                fresh.write_text(text, encoding="utf-8")
                replace(fresh, path)
        return text

    def build_plots(self) -> list[Plot]:
        """The plots of the report, as SVG."""
        return build_plots(self)

    def _named(self, path: Path, suffix: str) -> Path:
        return path / f"summary_{self.run_id}.{suffix}" if path.is_dir() else path
