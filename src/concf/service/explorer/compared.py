"""The run that is served, and another to hold it against: yesterday's and today's."""

from __future__ import annotations

import threading

from concf.errors import ConcfError
from concf.service.explorer.view import Explorer
from concf.service.loading import Served, Service
from concf.service.problems import Problem


class Comparison:
    """Explorers of the run that is served and of the one in `service.compared`, which is loaded when it is needed."""

    def __init__(self, service: Service) -> None:
        self.service, self._lock = service, threading.Lock()
        self._other: Served | None = None

    @property
    def name(self) -> str | None:
        """The name of the other run's folder."""
        return None if self.service.compared is None else self.service.compared.resolve().name

    def explorer(self, compared: bool = False) -> Explorer:
        """Of the run that is served, or of the other."""
        return Explorer.of(self._loaded() if compared else self.service.model)

    def _loaded(self) -> Served:
        folder = self.service.compared
        if folder is None:
            raise Problem(404, "not_found", "this service compares no runs; start it with --compare RUN", "compared")
        with self._lock:
            try:
                self._other = self._other or self.service.load(folder, 0)
            except ConcfError as error:
                raise Problem(409, "refused_run", str(error), str(folder)) from error
            return self._other
