"""What stubs leave of results."""

from __future__ import annotations

from chain.agent.window import length_of, oldest_results, with_stubs
from chain.messages import Image, Message, ToolCall, ToolResult


def test_a_stub_has_no_pictures_and_says_how_many_there_were() -> None:
    pictures = tuple(Image("image/png", f"digest{n}", f"image {n}") for n in range(2))
    result = ToolResult("c1", "short", images=pictures)
    messages = [Message("assistant", (ToolCall("c1", "look", {}),)), Message("user", (result,))]
    assert oldest_results(messages, 1) == ("c1",)
    stubbed = with_stubs(messages, {"c1"})[1]
    assert stubbed.results == (ToolResult("c1", "[look: 5 characters and 2 images removed to make room]"),)
    assert length_of(stubbed) < 100
