"""clew push"""

from clew.cli.commands import Call, read_command
from clew.cli.printing import print_line
from clew.cli.signals import log_to_stderr
from clew.hallucination.workflow import push

COMMAND = read_command(push)


def run(call: Call) -> None:
    log_to_stderr()
    result = call.run(push)
    if call.as_json:
        call.print_json(result.as_dict())
        return
    readers = "public" if result.public else "private"
    print_line(call.console, f"pushed ({readers}): {', '.join(result.files)}")
    if result.excluded:
        print_line(call.console, f"not pushed: {', '.join(result.excluded)}")
    print_line(call.console, f"detector: {result.name}")
