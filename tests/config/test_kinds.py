"""The section `agents`: its bounds, the kinds in it, and how a file of the user's changes them."""

import pytest
from support.configuration import Setting

from chain.app.prompt_files import agent_prompt
from chain.config.load import defaults_folder
from chain.config.settings import AgentsSettings, KindSettings
from chain.errors import ConfigError

SHIPPED = {
    name: KindSettings(name, prompt=defaults_folder() / f"prompts/agents/{name}.yaml")
    for name in ("explore", "plan", "agent")
}


def test_the_built_in_values_are_those_of_the_shipped_file(at: Setting) -> None:
    shipped = at.load(str(defaults_folder() / "config.yaml")).agents
    assert at.load().agents == shipped == AgentsSettings(kinds=tuple(SHIPPED.values()))
    assert (shipped.max_depth, shipped.max_running, shipped.max_kept) == (3, 8, 50)


def test_every_setting_of_a_kind_is_read(at: Setting) -> None:
    text = """
agents:
  reviewer:
    description: "Reads a change\\n  and says what is wrong"
    prompt: prompts/reviewer.yaml
    tools: [files, plan_list]
    model: claude
    max_iterations: 15
"""
    assert at.named(text).kind("reviewer") == KindSettings(
        name="reviewer",
        description="Reads a change\n  and says what is wrong",
        prompt=at.work / "prompts/reviewer.yaml",
        tools=("files", "plan_list"),
        model="claude",
        max_iterations=15,
    )


@pytest.mark.parametrize(
    "text",
    [
        "agents: {reviewer: {description: x}}",
        "agents: {reviewer: {description: x, prompt: null, tools: null, model: null, max_iterations: null}}",
        "agents: {reviewer: {description: x, prompt: '', model: ' '}}",
    ],
)
def test_what_a_kind_leaves_out_is_for_its_parent_and_chain_to_give(at: Setting, text: str) -> None:
    assert at.named(text).kind("reviewer") == KindSettings("reviewer", "x")


@pytest.mark.parametrize("name", ["a-1", "Explore", "mains", "_", "x" * 56])
def test_a_name_that_can_be_a_tools_is_one_of_a_kind(at: Setting, name: str) -> None:
    assert at.named(f"agents: {{{name}: {{description: x}}}}").kind_names == (*SHIPPED, name)


MERGED: list[tuple[str, dict[str, object], dict[str, KindSettings]]] = [
    ("agents:", {}, {}),
    ("agents: {max_running: 1, max_kept: 7}", {"max_running": 1, "max_kept": 7}, {}),
    ("agents: {explore:}", {}, {}),
    (
        "agents: {plan: {description: mine, prompt: null, tools: []}}",
        {},
        {"plan": KindSettings("plan", "mine", tools=())},
    ),
    (
        "agents: {z: {description: last}, agent: {model: offline}, b: {description: then}, max_depth: 1}",
        {"max_depth": 1},
        {
            "agent": KindSettings("agent", prompt=SHIPPED["agent"].prompt, model="offline"),
            "z": KindSettings("z", "last"),
            "b": KindSettings("b", "then"),
        },
    ),
]


@pytest.mark.parametrize(("text", "bounds", "kinds"), MERGED)
def test_what_a_file_leaves_out_is_as_shipped(
    at: Setting, text: str, bounds: dict[str, int], kinds: dict[str, KindSettings]
) -> None:
    got = at.named(text).agents
    assert got == AgentsSettings(**bounds, kinds=tuple({**SHIPPED, **kinds}.values()))


def test_variables_are_filled_in(at: Setting) -> None:
    text = """
agents:
  max_kept: ${KEPT:-9}
  reviewer:
    {description: "for ${WHO}", prompt: "${DIR}/r.yaml", tools: ["${WHO}"], model: "${M}", max_iterations: "${N}"}
"""
    got = at.named(text, {"WHO": "me", "DIR": "p", "M": "offline", "N": "4"})
    assert got.agents.max_kept == 9
    assert got.kind("reviewer") == KindSettings("reviewer", "for me", at.work / "p/r.yaml", ("me",), "offline", 4)


@pytest.mark.parametrize("text", ["max_kept: '${NONE}'", "reviewer: {description: '${NONE}'}"])
def test_a_missing_variable_is_an_error_only_when_its_value_is_needed(at: Setting, text: str) -> None:
    got = at.named(f"agents:\n  {text}")
    assert got.chain().max_iterations == 100
    assert got.kind("explore") == SHIPPED["explore"]
    with pytest.raises(ConfigError, match=r"mine\.yaml:2: .*the environment variable NONE is not set"):
        _ = got.agents


def test_a_model_that_was_given_goes_before_that_of_a_kind(at: Setting) -> None:
    text = "agents: {reviewer: {description: x, model: claude}}"
    assert at.named(text).kind("reviewer").model == "claude"
    for got in (at.named(text, model="offline"), at.named(text, {"CHAIN_MODEL": "offline"})):
        assert got.kind("reviewer").model is None
        assert got.agents.kinds[-1].model is None


def test_the_source_of_a_value_is_told(at: Setting) -> None:
    text = "agents:\n  max_kept: 9\n  reviewer:\n    description: x\n    model: '${M}'\n"
    got = at.named(text, {"M": "claude"})
    assert got.source("agents.max_kept") == "mine.yaml:2"
    assert got.source("agents.max_depth") == "default"
    assert got.source("agents.reviewer.model") == "mine.yaml:5, M"
    assert got.source("agents.reviewer.tools") == "default"
    assert got.source("agents.explore.model") == "default"
    flagged = at.named(text, {"M": "claude"}, model="offline")
    assert flagged.source("agents.reviewer.model") == "flag --model"
    assert flagged.source("agents.explore.model") == "default"


def test_each_shipped_prompt_tells_an_agent_who_gets_its_answer_and_who_interrupts(at: Setting) -> None:
    got = at.load()
    texts = [agent_prompt(got, name).system for name in SHIPPED]
    assert len(set(texts)) == len(SHIPPED)
    for text in texts:
        assert "without a tool call" in text
        assert "USER INTERRUPTION:" in text


def test_the_example_of_a_kind_in_the_shipped_file_can_be_used(at: Setting) -> None:
    rows = (defaults_folder() / "config.yaml").read_text().splitlines()
    begin = next(n for n, row in enumerate(rows) if row.strip() == "# reviewer:")
    text = "\n".join(["agents:", *(row.replace("# ", "", 1) for row in rows[begin:])])
    kind = at.named(text).kind("reviewer")
    assert None not in (kind.description, kind.prompt, kind.tools, kind.model, kind.max_iterations)
