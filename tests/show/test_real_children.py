"""The rows of agents that really run: what a chain tells, in the order in which it tells it."""

import time

from support.agents import WAIT, Family, family, starts
from support.renderers import above_a_prompt

from cli.show.answers import tree_rows
from cli.show.renderer import Renderer
from cli.show.transcripts import Transcripts


def rows(agents: Family, renderer: Renderer) -> list[str]:
    return [row for event in agents.session.events for row in renderer.lines(event)]


async def test_each_line_stands_with_the_agent_that_it_went_to() -> None:
    async with family() as agents:
        below = starts("explore", [WAIT], answer="Deep.")
        await agents.begin([starts("explore", [WAIT]), starts("agent", [below])])
        agents.send("for one", to="explore-1")
        agents.send("for the deepest", to="explore-2")
        await agents.finish()
        found = rows(agents, above_a_prompt(color=False, ascii=False, width=120))
        at = {
            name: (next(n for n, row in enumerate(found) if row.startswith(f"{inset}▶ {name}")),
                   next(n for n, row in enumerate(found) if row.startswith(f"{inset}✓ {name}")))
            for name, inset in (("explore-1", "  "), ("agent-1", "  "), ("explore-2", "    "))
        }  # fmt: skip
        for name, text in (("explore-1", "for one"), ("explore-2", "for the deepest")):
            first, last = at[name]
            told = [n for n, row in enumerate(found) if text in row]
            assert len(told) == 2
            assert all(first < n < last and name in found[n] for n in told)
        assert at["agent-1"][0] < at["explore-2"][0] < at["explore-2"][1] < at["agent-1"][1]


async def test_a_line_whose_agent_was_stopped_is_told_as_one_that_waits_for_another() -> None:
    async with family() as agents:
        await agents.begin([starts("explore", [WAIT]), starts("plan", [WAIT])])
        agents.send("too late", to="explore-1")
        agents.session.chain.submit("stop", to="explore-1")
        agents.waiters.let_go("explore-1")
        await agents.quiet()
        found = rows(agents, above_a_prompt(color=False, ascii=False, width=120))
        assert found.count("📤 too late ⏳ Now waits for main") == 1
        assert sum("Interrupting" in row for row in found) == 1
        await agents.finish()


async def test_the_tree_and_the_transcripts_are_of_all_agents() -> None:
    async with family() as agents:
        await agents.begin([starts("explore", [WAIT]), starts("agent", [starts("explore", [WAIT], answer="Deep.")])])
        tree = tree_rows(agents.session.chain.agents, 100, now=time.time())
        assert [row.split()[0] for row in tree] == ["main", "explore-1", "agent-1", "explore-2"]
        assert [len(row) - len(row.lstrip()) for row in tree] == [0, 2, 2, 4]
        await agents.finish()
        tree = tree_rows(agents.session.chain.agents, 100, now=time.time())
        assert tree[:2] == ["main  idle", "Finished, can be asked again:"]
        assert {row.split()[0] for row in tree[2:]} == {"explore-1", "agent-1", "explore-2"}
        transcripts = Transcripts()
        for event in agents.session.events:
            transcripts.update(event)
        assert list(transcripts.kept) == ["explore-1", "agent-1", "explore-2"]
        whole = transcripts.rows("explore-2", 100, color=False, ascii=False)
        assert whole[1:4] == ["[1/20]", "Step 1.", "→ wait()"]
        assert whole[4].startswith("✓ wait")
        assert "Deep." in whole
