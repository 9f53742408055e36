"""The tools by which the model reads and changes the plan."""

from __future__ import annotations

from chain.tools.tool import Tool, ToolContext, tool


@tool(kind="plan")
async def plan_add_task(ctx: ToolContext, task: str) -> str:
    """Add a task to the end of the plan."""
    return _report(ctx, ctx.plan.add(task, ctx.agent))


@tool(kind="plan")
async def plan_mark_done(ctx: ToolContext, task_number: int) -> str:
    """Mark a task of the plan as done. This cannot be undone. Tasks are numbered from 1."""
    return _report(ctx, ctx.plan.close(task_number, "DONE", ctx.agent))


@tool(kind="plan")
async def plan_mark_failed(ctx: ToolContext, task_number: int, reason: str = "") -> str:
    """Mark a task of the plan as failed. This cannot be undone. Give the reason. Tasks are numbered from 1."""
    return _report(ctx, ctx.plan.close(task_number, "FAILED", ctx.agent, reason))


@tool(kind="plan")
async def plan_set_tasks(ctx: ToolContext, tasks: list[str]) -> str:
    """Replace the whole plan with these tasks."""
    return _report(ctx, ctx.plan.replace_all(tasks, ctx.agent))


@tool(kind="plan")
async def plan_clear(ctx: ToolContext) -> str:
    """Remove every task from the plan."""
    return _report(ctx, ctx.plan.clear(ctx.agent))


@tool(kind="plan", read_only=True)
async def plan_list(ctx: ToolContext) -> str:
    """Show the plan."""
    return ctx.plan.render()


def _report(ctx: ToolContext, done: str) -> str:
    """Return the phrase ``done`` as a sentence, then the current plan, so that the model need not request the plan."""
    return f"{done[0].upper()}{done[1:]}.\n{ctx.plan.render()}"


TOOLS: tuple[Tool, ...] = (plan_add_task, plan_mark_done, plan_mark_failed, plan_set_tasks, plan_clear, plan_list)
