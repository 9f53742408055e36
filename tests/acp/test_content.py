"""The content blocks of a prompt as the text of a line."""

from pathlib import Path
from typing import Any

import pytest

from cli.acp.params import MAX_PROMPT_BLOCKS, read_prompt
from cli.acp.rpc import INVALID_PARAMS, RpcError

WORKSPACE = Path("/work space")


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def link(uri: str) -> dict[str, Any]:
    return {"type": "resource_link", "uri": uri, "name": "a name"}


def resource(**fields: str) -> dict[str, Any]:
    return {"type": "resource", "resource": fields}


def image(data: str = "AAAA", **more: str) -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": "image/png", **more}


def blob(data: str) -> dict[str, Any]:
    return resource(uri="file:///a/b.png", blob=data, mimeType="image/png")


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([text("one"), text("two")], "one\ntwo"),
        ([text("look at "), link("file:///work%20space/src/a.py"), text(" and b")], "look at @src/a.py and b"),
        ([text("see "), link("file:///work%20space/my%20a.py")], 'see @"my a.py"'),
        ([link("file:///elsewhere/a.py#L10:20")], "/elsewhere/a.py:L10:20"),
        *(([link(uri)], uri) for uri in ("https://example.org/a?b", "file://host/a", "http://[broken")),
        (
            [text("explain "), resource(uri="file:///work%20space/a.py", text="x = 1"), text(" please")],
            'explain a.py please\n\n<file path="a.py">\nx = 1\n</file>',
        ),
        ([text("what is "), image(uri="file:///x/dot.png"), text("and "), image()], "what is [dot.png]and [image 4]"),
        ([{**text("x"), "annotations": {"priority": 1}, "_meta": {"a": 1}}], "x"),
    ],
)
def test_blocks_become_text(blocks: list[Any], expected: str) -> None:
    assert read_prompt(blocks, WORKSPACE)[0] == expected


def test_images_have_the_names_in_the_text() -> None:
    found, images = read_prompt([text("what is "), image("AAAA"), text(" and "), blob("AQID")], WORKSPACE)
    assert found == "what is [image 2] and [b.png]"
    assert images == [("image 2", b"\0\0\0"), ("b.png", b"\1\2\3")]


@pytest.mark.parametrize(
    ("blocks", "named"),
    [
        ([], "prompt"),
        ([text(" ")], "prompt has no text"),
        ([text("x"), 5], "prompt[1]"),
        ([{}], "prompt[0].type"),
        ([{"type": "text", "text": 5}], "prompt[0].text"),
        ([{"type": "audio", "data": "", "mimeType": "audio/wav"}], "audio"),
        ([{"type": "video"}], "video"),
        ([{"type": "resource_link", "name": "x"}], "prompt[0].uri"),
        ([{"type": "resource", "resource": []}], "prompt[0].resource"),
        ([resource(uri="file:///a", blob="AAAA")], "blob"),
        ([resource(text="x")], "prompt[0].resource.uri"),
        ([text("x")] * (MAX_PROMPT_BLOCKS + 1), "prompt"),
        *(([block], "prompt[0]") for block in (image("not base64!"), {"type": "image"}, image("\u00e4"), blob("A"))),
    ],
)
def test_an_unusable_block_is_named(blocks: list[Any], named: str) -> None:
    with pytest.raises(RpcError) as caught:
        read_prompt(blocks, WORKSPACE)
    assert (caught.value.code, named in caught.value.message) == (INVALID_PARAMS, True), caught.value.message
