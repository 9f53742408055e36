"""The exports have everything that a journal has, in its order, also of a journal that ends anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from selectolax.lexbor import LexborHTMLParser
from support.eventful import eventful

from chain.export.html import html
from chain.export.markdown import markdown
from chain.export.outline import outline_of
from chain.journal import records
from chain.journal.reading import Reading
from chain.journal.records import Entry, Record
from chain.session.restored_state import events_of_journal

ROWS = eventful().journal.splitlines(keepends=True)


def words(text: str) -> str:
    """The words of a text without what is between them: marks and numbers of Markdown, quotes, line breaks."""
    return " ".join(re.findall(r"[^\W\d]+", re.sub(r"(?m)^[> ]*```.*$", "", text)))


def markdown_words(entries: list[Entry]) -> str:
    return words("".join(markdown(outline_of(events_of_journal(entries)))))


def html_words(entries: list[Entry]) -> str:
    return words(
        LexborHTMLParser("".join(html(outline_of(events_of_journal(entries))))).css_first("body").text(separator=" ")
    )


def texts(record: Record) -> Iterator[str]:
    """What a reader has to find of a record."""
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


@pytest.mark.parametrize("exported", [markdown_words, html_words])
@pytest.mark.parametrize("end", range(1, len(ROWS) + 1, 9))
def test_all_of_a_journal_is_in_it_wherever_the_journal_ends(exported: Callable[[list[Entry]], str], end: int) -> None:
    entries = list(Reading(ROWS[:end]))
    document = exported(entries)
    for text in (text for entry in entries for text in texts(entry.record)):
        assert words(text) in document


@pytest.mark.parametrize("exported", [markdown_words, html_words])
def test_what_the_main_agent_and_the_user_said_is_in_its_order(exported: Callable[[list[Entry]], str]) -> None:
    entries = list(Reading(ROWS))
    document, at = exported(entries), 0
    messages = [e.record for e in entries if isinstance(e.record, records.Message) and e.record.agent == "main"]
    said = [m.message.text for m in messages if m.message.role == "assistant" and m.message.text.strip()]
    assert len(said) > 5
    for text in said:
        at = document.index(words(text), at) + 1
