"""`receiver serve`."""

from __future__ import annotations

import sys

import click

from pushkit.terminal.log_output import LogFormat
from pushkit.terminal.options import choice_option, gathered
from pushkit.terminal.output import example
from receiver.options import config_option
from receiver.serving.service import ServiceOptions, run_service


@click.command(
    epilog=example("receiver serve --config receiver.toml --processes 2 --log-format json")
)
@gathered(
    "options",
    ServiceOptions,
    config=config_option,
    processes=click.option(
        "--processes",
        type=click.IntRange(1, 64),
        default=1,
        help="Processes that share one socket; one per core is enough.",
    ),
    verbose=click.option(
        "--verbose", is_flag=True, help="Log accepted notifications too, not only refusals."
    ),
    log_format=choice_option(
        "--log-format",
        of=LogFormat,
        help="Lines for people, or JSON objects; by default as the configuration says.",
    ),
)
def serve(*, options: ServiceOptions) -> None:
    """Serve the webhook and run the callbacks, until SIGTERM or Ctrl-C.

    Then requests in flight are answered, and the exit status is 0. SIGHUP reloads the senders and
    the certificate. If one of several processes dies, it is started again.
    """
    sys.exit(run_service(options))
