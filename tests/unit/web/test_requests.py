"""What the page asks its server: who has signed in, and which answer counts."""

from tests.support.page_code import evaluate

# Answers wait until they are given; what was asked for stands in `asked`.
BROWSER = """
globalThis.document = { visibilityState: "visible", addEventListener() {} };
globalThis.asked = [];
globalThis.fetch = (path, { signal } = {}) =>
  new Promise((resolve, reject) => {
    const answer = (body, status = 200) =>
      resolve(new Response(JSON.stringify(body), { status }));
    signal?.addEventListener("abort", () => reject(new DOMException("", "AbortError")));
    asked.push({ path, answer });
  });
globalThis.soon = (ms = 0) => new Promise((resolve) => setTimeout(resolve, ms));
"""


def test_a_refusal_from_before_the_sign_in_signs_nobody_out() -> None:
    expression = """(async () => {
      let told = 0;
      onSignedOut(() => (told += 1));
      const found = get("/jobs");
      await soon();
      noteSignIn();
      asked[0].answer({}, 401);
      await soon();
      asked[1].answer("all");
      const refused = get("/gpus").catch((problem) => problem.status);
      await soon();
      asked[2].answer({}, 401);
      return [await found, await refused, told];
    })()"""
    found = evaluate(["api/client.ts"], expression, browser=BROWSER)
    assert found == ["all", 401, 1]
