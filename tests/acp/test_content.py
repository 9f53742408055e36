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
        pytest.param([text("one"), text("two")], "one\ntwo", id="two texts are two rows"),
        pytest.param([text("see "), link("file:///work%20space/a/b.py"), text(" too")], "see @a/b.py too", id="link"),
        pytest.param([link("file:///work%20space/my%20a.py")], '@"my a.py"', id="link to a name with a space"),
        pytest.param([link("file:///elsewhere/a.py#L10:20")], "/elsewhere/a.py:L10:20", id="link to another folder"),
        pytest.param([link("https://example.org/a?b")], "https://example.org/a?b", id="link to a page"),
        pytest.param([link("file://host/a")], "file://host/a", id="link to a file of another machine"),
        pytest.param([link("http://[broken")], "http://[broken", id="broken link"),
        pytest.param(
            [text("explain "), resource(uri="file:///work%20space/a.py", text="x = 1"), text(" please")],
            'explain a.py please\n\n<file path="a.py">\nx = 1\n</file>',
            id="contents of a file",
        ),
        pytest.param(
            [text("what is "), image(uri="file:///x/dot.png"), text("and "), image()],
            "what is [dot.png]and [image 4]",
            id="images, the second named by the number of its block",
        ),
        pytest.param([{**text("x"), "annotations": {"priority": 1}, "_meta": {"a": 1}}], "x", id="unknown keys"),
    ],
)
def test_blocks_become_text(blocks: list[Any], expected: str) -> None:
    line, _ = read_prompt(blocks, WORKSPACE)
    assert line == expected


def test_images_have_the_names_in_the_text() -> None:
    line, images = read_prompt([text("what is "), image("AAAA"), text(" and "), blob("AQID")], WORKSPACE)
    assert line == "what is [image 2] and [b.png]"
    assert images == [("image 2", b"\0\0\0"), ("b.png", b"\1\2\3")]


@pytest.mark.parametrize(
    ("blocks", "named"),
    [
        pytest.param([], "prompt", id="no block"),
        pytest.param([text(" ")], "prompt has no text", id="blank text"),
        pytest.param([text("x"), 5], "prompt[1]", id="block that is no object"),
        pytest.param([{}], "prompt[0].type", id="block without type"),
        pytest.param([{"type": "text", "text": 5}], "prompt[0].text", id="number as text"),
        pytest.param([{"type": "audio", "data": "", "mimeType": "audio/wav"}], "audio", id="audio"),
        pytest.param([{"type": "video"}], "video", id="unknown type"),
        pytest.param([{"type": "resource_link", "name": "x"}], "prompt[0].uri", id="link without URI"),
        pytest.param([{"type": "resource", "resource": []}], "prompt[0].resource", id="array as resource"),
        pytest.param([resource(uri="file:///a", blob="AAAA")], "blob", id="blob without type"),
        pytest.param([resource(text="x")], "prompt[0].resource.uri", id="resource without URI"),
        pytest.param([text("x")] * (MAX_PROMPT_BLOCKS + 1), "prompt", id="too many blocks"),
        pytest.param([image("not base64!")], "prompt[0]", id="image not in base64"),
        pytest.param([{"type": "image"}], "prompt[0]", id="image without data"),
        pytest.param([image("\u00e4")], "prompt[0]", id="image not in ASCII"),
        pytest.param([blob("A")], "prompt[0]", id="incomplete base64"),
    ],
)
def test_an_unusable_block_is_named(blocks: list[Any], named: str) -> None:
    with pytest.raises(RpcError) as caught:
        read_prompt(blocks, WORKSPACE)
    assert (caught.value.code, named in caught.value.message) == (INVALID_PARAMS, True), caught.value.message
