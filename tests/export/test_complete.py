"""The exports contain every text of a journal, in its order, also if the journal ends early."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from selectolax.lexbor import LexborHTMLParser
from support.eventful import eventful_session

from chain.export.html import render_html
from chain.export.markdown import render_markdown
from chain.export.outline import outline_of
from chain.journal import records
from chain.journal.reading import Reading
from chain.journal.records import Entry, Record
from chain.session.restored_state import events_of_journal

ROWS = eventful_session().journal.splitlines(keepends=True)
FORMS = pytest.mark.parametrize("form", ["markdown", "html"])


def words(text: str) -> str:
    """Return the words of a text, without markup, numbers and line breaks."""
    return " ".join(re.findall(r"[^\W\d]+", re.sub(r"(?m)^[> ]*```.*$", "", text)))


def exported_words(form: str, entries: list[Entry]) -> str:
    outline = outline_of(events_of_journal(entries))
    if form == "markdown":
        return words("".join(render_markdown(outline)))
    return words(LexborHTMLParser("".join(render_html(outline))).css_first("body").text(separator=" "))


def texts(record: Record) -> Iterator[str]:
    """Yield the texts of a record that an export contains."""
    match record:
        case records.Message(message=message):
            yield from (result.text for result in message.results)
            if message.role == "assistant":
                yield message.text
        case records.ToolStarted(name=name):
            yield name
        case records.ToolFinished(text=text) | records.Line(text=text) | records.Question(text=text):
            yield text
        case records.Answer(text=text) | records.TaskAdded(text=text) | records.AgentStarted(task=text):
            yield text
        case records.PlanReplaced(tasks=tasks):
            yield from tasks
        case records.Receipt(state="handled", reason=reason):
            yield reason
        case records.Result(result=text):
            yield from text.splitlines()
        case _:
            pass


@FORMS
@pytest.mark.parametrize("row_count", range(1, len(ROWS) + 1, 9))
def test_export_contains_every_text_of_the_journal(form: str, row_count: int) -> None:
    entries = list(Reading(ROWS[:row_count]))
    document = exported_words(form, entries)
    for entry in entries:
        for text in texts(entry.record):
            assert words(text) in document


@FORMS
def test_replies_are_in_their_order(form: str) -> None:
    entries = list(Reading(ROWS))
    document = exported_words(form, entries)
    messages = [e.record for e in entries if isinstance(e.record, records.Message) and e.record.agent == "main"]
    replies = [m.message.text for m in messages if m.message.role == "assistant" and m.message.text.strip()]
    assert len(replies) > 5, "the session has replies to compare"
    position = -1
    for reply in replies:
        position = document.index(words(reply), position + 1)
