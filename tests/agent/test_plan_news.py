"""What of the plan a model is told, and when."""

from __future__ import annotations

from chain.plan import Plan, PlanNews


def test_a_conversation_that_begins_is_told_of_a_plan_that_is_there() -> None:
    plan = Plan()
    assert PlanNews(plan, "main", empty=True).send() == ""
    plan.add("a", "user")
    assert "1. a" in PlanNews(plan, "main", empty=True).send()
    assert PlanNews(plan, "main", empty=False).send() == ""


def test_a_change_of_the_user_is_sent_until_it_was_read_and_one_of_the_model_is_not() -> None:
    plan = Plan()
    news = PlanNews(plan, "main", empty=True)
    plan.add("a", "user")
    assert "1. a" in news.send()
    assert "1. a" in news.send(), "no reply came"
    news.read()
    assert news.send() == ""
    plan.add("b", "main")
    assert news.send() == ""
    plan.clear("user")
    assert news.send() == "The plan is empty."


def test_a_change_that_came_while_the_model_answered_is_still_news() -> None:
    plan = Plan()
    news = PlanNews(plan, "main", empty=True)
    assert news.send() == ""
    plan.add("a", "user")
    news.read()
    assert "1. a" in news.send()


def test_the_models_own_change_shows_it_all_and_a_later_one_of_the_user_is_news() -> None:
    plan = Plan()
    news = PlanNews(plan, "main", empty=True)
    plan.add("a", "user")
    plan.add("b", "main")
    assert news.send() == "", "it has read both in the result of its tool"
    plan.close(1, "DONE", "user")
    assert "[✓] 1. a" in news.send()


def test_a_change_by_another_agent_is_news() -> None:
    plan = Plan()
    main, child = PlanNews(plan, "main", empty=True), PlanNews(plan, "plan-1", empty=True)
    plan.add("a", "plan-1")
    assert "1. a" in main.send()
    assert child.send() == ""


def test_what_left_the_conversation_is_news_again() -> None:
    plan = Plan()
    news = PlanNews(plan, "main", empty=True)
    plan.add("a", "user")
    news.send()
    news.read()
    news.forget()
    assert "1. a" in news.send()
