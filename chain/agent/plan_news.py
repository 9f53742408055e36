"""What of the plan a model has yet to read. Pure.

A model reads its own changes in the results of the plan tools. A change by anyone else, the user or another agent, it
reads in the tail of the next request (SPEC, section 5), and again in the one after that, until a reply to it is in the
conversation.
"""

from __future__ import annotations

from chain.plan import Plan


class PlanNews:
    """What the conversation of one ``agent`` knows of a plan; one that is ``empty`` knows nothing of it."""

    def __init__(self, plan: Plan, agent: str, *, empty: bool) -> None:
        self._plan = plan
        self._agent = agent
        self._known: int | None = plan.revision
        self._sent = plan.revision
        if empty:
            self.forget()

    def send(self) -> str:
        """What the next request has to say of the plan; empty if the model knows it."""
        if self._plan.revision != self._sent and self._plan.last_by == self._agent:
            self._known = self._plan.revision
        self._sent = self._plan.revision
        return "" if self._known == self._plan.revision else self._plan.render()

    def read(self) -> None:
        """A reply to what was sent is in the conversation. A change that came meanwhile is still news."""
        self._known = self._sent

    def forget(self) -> None:
        """What the model was told of the plan has left the conversation."""
        self._known = None if self._plan.tasks else self._plan.revision
        self._sent = self._plan.revision
