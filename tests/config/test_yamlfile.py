"""YAML is read safely: what is refused, and that every refusal names file and line."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chain.config.yamlfile import MAX_NUMBER, MAX_YAML_BYTES, MAX_YAML_DEPTH, MAX_YAML_VALUES, Node, parse, read
from chain.errors import ConfigError


@pytest.fixture(autouse=True, params=["libyaml", "python"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with both readers of yaml. The fast one, libyaml, is not installed everywhere."""
    if request.param == "python":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    elif not hasattr(yaml, "CSafeLoader"):
        pytest.skip("PyYAML was built without libyaml")


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text, "a.yaml")
    return caught.value


PLAIN_VALUES = {
    "all types": ("a: 1\nb: [true, null, 2.5, x]\nc: {d: 'e'}", {"a": 1, "b": [True, None, 2.5, "x"], "c": {"d": "e"}}),
    "a date stays text": ("2026-01-02", "2026-01-02"),
    "an alias": ("a: &x [1]\nb: *x\n", {"a": [1], "b": [1]}),
    "empty": ("", None),
    "only a comment": ("# x\n", None),
}


@pytest.mark.parametrize(("text", "value"), PLAIN_VALUES.values(), ids=PLAIN_VALUES)
def test_a_document_becomes_plain_values(text: str, value: object) -> None:
    assert parse(text, "a.yaml").plain() == value


def test_every_value_has_its_line_and_key() -> None:
    root = parse("chains:\n  default:\n    tools:\n      - todo\n      - files\n", "a.yaml")
    tools = root.mapping()["chains"].mapping()["default"].mapping()["tools"]
    assert (tools.line, tools.key) == (3, "chains.default.tools")
    assert [(item.line, item.key) for item in tools.items()] == [
        (4, "chains.default.tools[0]"),
        (5, "chains.default.tools[1]"),
    ]


def test_an_unknown_key_suggests_the_nearest() -> None:
    root = parse("inbox:\n  size: 3\n  sise: 4\n", "a.yaml")
    with pytest.raises(ConfigError) as caught:
        root.mapping()["inbox"].mapping(["size"])
    assert str(caught.value) == "a.yaml:3: unknown key inbox.sise: did you mean size?"
    with pytest.raises(ConfigError, match="the keys here are size, depth"):
        parse("zzz: 1", "a.yaml").mapping(["size", "depth"])
    assert parse("", "a.yaml").mapping(["a"]) == {}


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def aliases(levels: int) -> str:
    """Return lists of nine aliases, each of the previous list, which expand to 9 ** levels values."""
    rows = [f"l{n}: &l{n} [{', '.join(['x' if n == 0 else f'*l{n - 1}'] * 9)}]" for n in range(levels)]
    return "\n".join(rows)


TOO_LARGE = {
    "depth": (nested(MAX_YAML_DEPTH + 1), "levels deep"),
    "more depth than Python's stack": (nested(20_000), "levels deep"),
    "aliases": (aliases(9), "too many values"),
    "an alias of itself": ("a: &x [*x]\n", ""),
    "size": ("a: " + "x" * MAX_YAML_BYTES, "larger than 128 kB"),
}


@pytest.mark.parametrize(("text", "why"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_text_beyond_a_limit_is_refused(text: str, why: str) -> None:
    assert why in refusal(text).message


def test_the_deepest_allowed_text_is_read() -> None:
    assert parse(nested(MAX_YAML_DEPTH), "a.yaml").items()


@pytest.mark.slow
def test_the_number_of_values_is_limited() -> None:
    most_items = MAX_YAML_VALUES - 1  # the list itself is a value too
    assert len(parse("[" + "1," * most_items + "]", "a.yaml").items()) == most_items
    assert "too many values" in str(refusal("[" + "1," * MAX_YAML_VALUES + "]"))


@pytest.mark.parametrize("text", ["!!python/object/apply:os.system [true]", "a: !!python/name:os.system", "!mine x"])
def test_unsafe_tags_create_nothing(text: str) -> None:
    try:
        value = parse(text, "a.yaml").plain()
    except ConfigError:
        return
    _, without_tag = text.split(" ", 1)
    assert value == yaml.safe_load(without_tag)


NO_YAML = "is not valid YAML: "
BASE_60 = "1" + ":1" * 60_000  # a number to the base 60
QUOTE = 'quote ${...} between braces and brackets: "${VAR}"'


@pytest.mark.parametrize(
    ("text", "line", "message_part"),
    [
        # Syntax.
        ("a: 1\nb: [1,\n", 3, f"{NO_YAML}expected the node content, but found '<stream end>'"),
        ("a: {b: 1 c: 2}", 1, f"{NO_YAML}expected ',' or '}}', but got ':'"),
        ("a: *nobody\n", 1, f"{NO_YAML}found undefined alias 'nobody'"),
        ("? [a, b]\n: 1\n", 1, "a key must be a word"),
        ("a: 1\n\tb: 2\n", 2, NO_YAML),
        ("a: 'x\n", 2, NO_YAML),
        ("a: 1\n--- \nb: 2\n", 2, NO_YAML),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", 4, "b.c occurs twice, first on line 3"),
        # Values that are not of their type.
        ("a: 1\nb: !!int x\n", 2, "cannot be read as"),
        ("a: 1\nb: !!timestamp 2026-99-99\n", 2, "cannot be read as"),
        ("a: 1\nb: !!float x\n", 2, "cannot be read as"),
        ("a: 1\nb: 2026-99-99\n", 2, "cannot be read as"),
        # Variables between braces or brackets.
        ("a:\n  b: {key: ${VAR}}\n", 2, QUOTE),
        ("a: [x,\n  ${VAR:-y}]\nb: 1\n", 2, QUOTE),
        ("a: {x: 1,\r\n  y: ${VAR},\r\n  z: 1}\r\n", 2, QUOTE),
        # Characters and numbers.
        ("a: 1\nb: \x01\n", 2, r"the character \x01 is not allowed"),
        ("a: 1\nb: \ud800\n", 2, r"the character \ud800 is not allowed"),
        (f"a: 1\nb: {BASE_60}\n", 2, "a number may have at most 40 characters"),
        (f"a: 1\nb: {BASE_60}.5\n", 2, "a number may have at most 40 characters"),
        (f"a: 1\nb: !!int '{'1' * (MAX_NUMBER + 1)}'\n", 2, "a number may have at most 40 characters"),
        ("a: 1\nb: 1234567890123456\n", 2, "a number may have at most 15 digits"),
    ],
)
def test_a_mistake_has_its_line_with_both_readers(text: str, line: int, message_part: str) -> None:
    error = refusal(text)
    assert error.line == line
    assert message_part in error.message
    assert error.message.isprintable()


@pytest.mark.parametrize("text", ["a: ${VAR}\nb: {c: {d}\n", "a: '${VAR}\n", "a: ${VAR}: x"])
def test_quoting_is_suggested_only_where_it_helps(text: str) -> None:
    assert "quote" not in str(refusal(text))


HALF = MAX_YAML_BYTES // 2  # the number of two-byte characters that reaches the limit
UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda file: None, r"a\.yaml: cannot be read: No such file"),
    "a folder": (Path.mkdir, "cannot be read: it is a folder"),
    "another encoding": (lambda file: file.write_bytes(b"a: 1\nb: caf\xe9\n"), r"a\.yaml:2: is not UTF-8"),
    "a limit inside a character": (lambda file: file.write_text(f"ab: {HALF * 'é'}"), "larger than 128 kB"),
}


@pytest.mark.parametrize(("make", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_file_is_an_error(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    make(tmp_path / "a.yaml")
    open_files = os.listdir("/dev/fd")
    with pytest.raises(ConfigError, match=message):
        read(tmp_path / "a.yaml")
    assert os.listdir("/dev/fd") == open_files


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "bom.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read(file).plain() == {"a": 1}


def node(text: str) -> Node:
    return parse(f"k: {text}", "a.yaml").mapping()["k"]


def test_typed_access_returns_the_value() -> None:
    assert node("x").text() == "x"
    assert node("true").boolean() is True
    assert node("3").integer(minimum=3) == 3
    assert node("3").number() == 3.0
    assert node("0.5".ljust(MAX_NUMBER, "0")).number() == 0.5
    assert node("b").choice(["a", "b"]) == "b"
    assert [item.integer() for item in node("[1, 2]").items()] == [1, 2]


@pytest.mark.parametrize(
    ("text", "method"),
    [
        *[(text, "text") for text in ("1", "true", "null", "[]", "{}")],
        *[(text, "boolean") for text in ("1", "'true'", "null")],
        *[(text, "integer") for text in ("true", "1.0", "'1'", "null", "-1", "[1]")],
        *[(text, "number") for text in ("true", "'1'", "null", "-0.5", ".inf", ".nan")],
        *[(text, "items") for text in ("x", "null", "{}")],
        *[(text, "mapping") for text in ("x", "null", "[]")],
    ],
)
def test_a_wrong_type_names_file_line_and_key(text: str, method: str) -> None:
    with pytest.raises(ConfigError, match=r"^a\.yaml:1: k: "):
        getattr(node(text), method)()


SUBSTITUTIONS: dict[str, tuple[str, dict[str, str], str]] = {
    "one": ("${M}", {"M": "m"}, "m"),
    "two": ("a-${M}-${N}", {"M": "m", "N": "n"}, "a-m-n"),
    "a default for an unset one": ("${M:-d}", {}, "d"),
    "a default for an empty one": ("${M:-d}", {"M": ""}, "d"),
    "an unused default": ("${M:-d}", {"M": "m"}, "m"),
    "an empty default": ("x${M:-}", {}, "x"),
    "without braces": ("$M", {"M": "m"}, "$M"),
    "escaped": ("$${M}", {"M": "m"}, "${M}"),
    "a variable in a variable": ("${M}", {"M": "${N}", "N": "n"}, "${N}"),
}


@pytest.mark.parametrize(("text", "environ", "expanded"), SUBSTITUTIONS.values(), ids=SUBSTITUTIONS)
def test_variables_are_substituted_with_an_environment(text: str, environ: dict[str, str], expanded: str) -> None:
    assert node(f"'{text}'").with_environ(environ).text() == expanded
    assert node(f"'{text}'").text() == text


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(plain_values)
def test_written_yaml_is_read_back(value: object) -> None:
    text = yaml.safe_dump(value)
    assert parse(text, "a.yaml").plain() == yaml.safe_load(text)


@given(st.text(alphabet="ab1 \n\t:-[]{},&*'\"#|>?%@${}.~é\u2028\x85\r", max_size=60))
def test_both_readers_agree_on_any_text(text: str) -> None:
    def result() -> Node | str:
        try:
            return parse(f"key: {text}", "a.yaml")
        except ConfigError as error:
            return str(error)

    with_libyaml = result()
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(yaml, "CSafeLoader", raising=False)
        with_python = result()
    # libyaml also accepts some tabs, and question marks between braces, that PyYAML's own reader refuses.
    assert with_libyaml == with_python or (isinstance(with_libyaml, Node) and isinstance(with_python, str))
