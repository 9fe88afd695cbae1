"""`gpuyard budgets`: what the jobs of a project or of a user, or all, may cost."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.jobs import AsJson
from gpuyard.cli.output import clock, print_json, print_page, print_table, say
from gpuyard.cli.session import connect

if TYPE_CHECKING:
    from gpuyard.domain.budgets import Budget

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the budget.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    budgets = typer.Typer(
        help="List what projects and users may spend; set and remove budgets.",
        invoke_without_command=True,
    )
    budgets.callback()(listing)
    budgets.command("set")(set_budget)
    budgets.command("rm")(remove)
    app.add_typer(budgets, name="budgets")


def listing(context: typer.Context, as_json: AsJson = False) -> None:
    """List the budgets: what is spent and reserved in their present period, and what it
    comes to if the jobs that run need all of their time.
    """
    if context.invoked_subcommand:
        return
    with connect() as client:
        found = client.budgets()
    if as_json:
        print_page(found)
        return
    columns = (
        "NAME",
        "OF",
        "AMOUNT",
        "EACH",
        "SPENT",
        "RESERVED",
        "FORECAST",
        "WAITING",
        "HARD",
        "ENDS AT",
    )
    rows = [_row(budget) for budget in found]
    print_table(columns, rows, empty="No budget is set: jobs may cost what they like.")
    for budget in found:
        if budget.missing_rates:
            say(_without_rates(budget))


def set_budget(
    name: Name,
    amount: Annotated[
        str, typer.Option(metavar="AMOUNT", help="What may be spent, such as 500.")
    ],
    project: Annotated[
        str | None, typer.Option(help="The project whose jobs it pays.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="Or the user; neither: all jobs.")
    ] = None,
    period: Annotated[
        str, typer.Option(help="day, month or total: when it begins anew.")
    ] = "month",
    currency: Annotated[
        str | None, typer.Option(help="Such as EUR. That of bills.")
    ] = None,
    hard: Annotated[
        bool,
        typer.Option(
            "--hard", help="When it is spent, end what runs, too; it is asked to save."
        ),
    ] = False,
    timezone: Annotated[
        str | None,
        typer.Option(metavar="ZONE", help="Whose days and months. This machine's."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set what the jobs of a project or of a user, or all jobs, may cost in each
    period. When that is spent or reserved, no more of them start.
    """
    fields = {
        "project": project,
        "user": user,
        "period": period,
        "currency": currency,
        "hard": hard,
        "timezone": timezone,
    }
    with connect() as client:
        done = client.set_budget(name, amount, **fields)
    if as_json:
        print_json(done)
        return
    typer.echo(
        f"{done.name}: {_money(done, 'spent')} of {_money(done, 'amount')} are spent,"
        f" {_money(done, 'reserved')} reserved"
    )


def remove(name: Name, as_json: AsJson = False) -> None:
    """Remove a budget. What waits for it may start."""
    with connect() as client:
        before = client.remove_budget(name)
    if as_json:
        print_json(before)
    else:
        typer.echo(f"{before.name} is removed")


def _row(budget: "Budget") -> tuple[str | None, ...]:
    return (
        budget.name,
        _whose(budget),
        _money(budget, "amount"),
        budget.period.value,
        _money(budget, "spent"),
        _money(budget, "reserved"),
        _money(budget, "forecast"),
        str(budget.waiting),
        "yes" if budget.hard else "no",
        clock(budget.ends_at),
    )


def _without_rates(budget: "Budget") -> str:
    missing = ", ".join(str(each) for each in budget.missing_rates)
    return (
        f"{budget.name} lacks costs: gpuyard knows no rate of {missing}. Set it in"
        " [billing] rates."
    )


def _whose(budget: "Budget") -> str:
    if budget.project:
        return f"project {budget.project}"
    return f"user {budget.user}" if budget.user else "all jobs"


def _money(budget: "Budget", field: str) -> str:
    text = f"{getattr(budget, field):.2f}"
    return f"${text}" if budget.currency == "USD" else f"{text} {budget.currency}"
