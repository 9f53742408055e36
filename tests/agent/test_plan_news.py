"""Which changes of the plan a request mentions to the model."""

from dataclasses import dataclass, field

from chain.plan import Plan, PlanNews


@dataclass
class Agent:
    """An agent with an empty conversation, whose requests contain news of a plan."""

    plan: Plan
    agent: str = "main"
    news: PlanNews = field(default_factory=PlanNews)

    def __post_init__(self) -> None:
        self.news.mark_unknown(self.plan)

    def send(self) -> str:
        """Send a request, and return its text about the plan."""
        text = self.news.pending(self.plan, self.agent)
        self.news.record_request(self.plan, self.agent)
        return text


def test_a_new_conversation_gets_the_plan() -> None:
    plan = Plan()
    assert Agent(plan).send() == ""
    plan.add("a", "user")
    assert "1. a" in Agent(plan).send()


def test_changes_by_the_user_are_sent_until_read() -> None:
    main = Agent(Plan())
    main.plan.add("a", "user")
    assert "1. a" in main.send()
    assert "1. a" in main.send(), "there was no reply yet"
    main.news.record_reply()
    assert main.send() == ""
    main.plan.add("b", "main")
    assert main.send() == ""
    main.plan.clear("user")
    assert main.send() == "The plan is empty."


def test_a_change_during_a_reply_is_news() -> None:
    main = Agent(Plan())
    assert main.send() == ""
    main.plan.add("a", "user")
    main.news.record_reply()
    assert "1. a" in main.send()


def test_the_models_own_change_settles_news() -> None:
    main = Agent(Plan())
    main.plan.add("a", "user")
    main.plan.add("b", "main")
    assert main.send() == "", "the model has read both in the result of its call"
    main.plan.close(1, "DONE", "user")
    assert "[✓] 1. a" in main.send()


def test_a_change_by_another_agent_is_news() -> None:
    plan = Plan()
    main, child = Agent(plan), Agent(plan, "plan-1")
    plan.add("a", "plan-1")
    assert "1. a" in main.send()
    assert child.send() == ""


def test_forgotten_changes_are_news_again() -> None:
    main = Agent(Plan())
    main.plan.add("a", "user")
    main.send()
    main.news.record_reply()
    main.news.mark_unknown(main.plan)
    assert "1. a" in main.send()
